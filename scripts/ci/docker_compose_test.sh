#!/usr/bin/env bash
# `make test-compose` on a machine that may have no Docker at all and reach no registry of images, as CI does it. What
# was not there before is not there afterwards, but for packages.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
made=(r2ccl-test)
# A state of its own: only an engine that this run starts is stopped by it.
DOCKER_STATE=$(mktemp -d "${TMPDIR:-/tmp}/r2ccl-docker.XXXXXXXX")
export DOCKER_STATE
leave() {
    docker image rm "${made[@]}" >/dev/null 2>&1 || true
    scripts/ci/docker_stop.sh
}
trap leave EXIT
scripts/ci/docker_start.sh

base=python:3.11-slim
if ! docker image inspect "$base" >/dev/null 2>&1; then
    if docker pull --quiet "$base" >/dev/null 2>&1; then
        made+=("$base")
    else
        echo "$base cannot be fetched here; a stand-in is made of Debian's packages"
        base=r2ccl-base
        docker image inspect "$base" >/dev/null 2>&1 || made+=("$base")
        scripts/ci/docker_base_image.sh "$base"
    fi
fi
BASE_IMAGE=$base make test-compose
