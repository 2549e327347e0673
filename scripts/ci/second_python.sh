#!/usr/bin/env bash
# The fast tests on a Python other than that of .venv, 3.12 or later, in an environment of its own. Where none is
# installed it says so and succeeds: a bare Debian 12 has one Python only.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
first=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
second=
shopt -s nullglob
for python in "${SECOND_PYTHON:-}" python3.13 python3.14 python3.12 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
    [[ -n $python ]] || continue
    version=$("$python" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if [[ $version != "$first" ]]; then
        second=$python
        break
    fi
done
if [[ -z $second ]]; then
    echo "left out: the fast tests on a second Python, which needs 3.12 or later besides $first (SECOND_PYTHON=...)"
    exit 0
fi
echo "fast tests on $("$second" --version)"
"$second" -m venv .venv-second
.venv-second/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
.venv-second/bin/python -m pytest -q -n 2 -m 'not end_to_end and not slow and not namespaces and not torchrun' --ignore tests/lab
