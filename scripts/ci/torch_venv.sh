#!/usr/bin/env bash
# Makes .venv-torch, an environment with r2ccl and torch for the tests whose ranks use torch, and prints where its
# torchrun is. `make test-torch` calls it, and runs those tests alone; with all others they run by
#
#     make test ARGS="--torchrun=$(scripts/ci/torch_venv.sh)"
#
# Apart from .venv because torch is large, a gigabyte here and several where the package index has no build for CPUs
# alone. It is made again only when pyproject.toml or the wanted torch (TORCH=torch==2.13.0) changes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

torch=${TORCH:-torch==2.13.0}
environment=.venv-torch
stamp=$environment/.installed
wanted="$torch $(cksum <pyproject.toml)"

if [[ ! -e $stamp || $(<"$stamp") != "$wanted" ]]; then
    # The same Python as the tests, if there is one already.
    python=.venv/bin/python
    [[ -x $python ]] || python=${PYTHON:-python3}
    "$python" -m venv "$environment" >&2
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[bfloat16]" "$torch" >&2
    printf '%s\n' "$wanted" >"$stamp"
fi
printf '%s\n' "$PWD/$environment/bin/torchrun"
