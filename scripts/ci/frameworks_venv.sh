#!/usr/bin/env bash
# Makes .venv-frameworks, an environment with r2ccl, torch and the frameworks that train on it, and prints where its
# Python is. `make test-frameworks` calls it.
#
# torch comes first and stays as it is: a framework that wants another one is left out. So is one that cannot be had
# here; why is in .venv-frameworks/missing/NAME, and its test is skipped with that reason. Nothing is compiled: of
# DeepSpeed only what is Python. It is made again only when pyproject.toml or what is wanted changes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

torch=${TORCH:-torch==2.13.0}
frameworks=(accelerate==1.15.0 deepspeed==0.19.8 lightning==2.6.6)
environment=.venv-frameworks
stamp=$environment/.installed
wanted="$torch ${frameworks[*]} $(cksum <pyproject.toml)"

if [[ ! -e $stamp || $(<"$stamp") != "$wanted" ]]; then
    python=.venv/bin/python
    [[ -x $python ]] || python=${PYTHON:-python3}
    "$python" -m venv "$environment" >&2
    install=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${install[@]}" --editable ".[bfloat16]" "$torch" >&2
    # What builds DeepSpeed, which asks the torch that is there.
    "${install[@]}" setuptools wheel >&2
    printf '%s\n' "$torch" >"$environment/constraints.txt"
    rm -rf "$environment/missing"
    mkdir "$environment/missing"
    for framework in "${frameworks[@]}"; do
        log=$environment/missing/${framework%%==*}
        if DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${install[@]}" --no-build-isolation \
            --constraint "$environment/constraints.txt" "$framework" >"$log" 2>&1; then
            rm "$log"
        else
            echo "left out: $framework: $(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")" >&2
        fi
    done
    printf '%s\n' "$wanted" >"$stamp"
fi
printf '%s\n' "$PWD/$environment/bin/python"
