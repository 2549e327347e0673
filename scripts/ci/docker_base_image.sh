#!/usr/bin/env bash
# Make a stand-in for python:3.11-slim out of the machine's own Debian packages, where no image can be fetched:
#
#     scripts/ci/docker_base_image.sh r2ccl-base && docker build --network host --build-arg BASE_IMAGE=r2ccl-base .
#
# It differs in the minor version of Python and in where packages go, and it trusts the certificates that this machine
# trusts, so that pip works in it where it works here: for tests, not to be given away.
set -euo pipefail

tag=${1:?usage: docker_base_image.sh TAG}
if docker image inspect "$tag" >/dev/null 2>&1; then
    echo "$tag is there"
    exit 0
fi
. /etc/os-release
if [[ ${ID:-} != debian ]] || ! command -v mmdebstrap >/dev/null; then
    echo "this needs Debian and its package mmdebstrap" >&2
    exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/r2ccl-base.XXXXXXXX")
trap 'rm -rf -- "$work"' EXIT
cat >"$work/customize" <<'HOOK'
#!/bin/sh
set -e
ln -sf /usr/bin/python3 "$1/usr/local/bin/python3"
ln -sf python3 "$1/usr/local/bin/python"
ln -sf /usr/bin/pip3 "$1/usr/local/bin/pip"
rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED
for certificate in /usr/local/share/ca-certificates/*.crt; do
    if [ -e "$certificate" ]; then cp "$certificate" "$1/usr/local/share/ca-certificates/"; fi
done
chroot "$1" update-ca-certificates >/dev/null
rm -rf "$1"/var/cache/debconf/*-old
HOOK
chmod +x "$work/customize"

sources=/etc/apt/sources.list.d/debian.sources
[[ -e $sources ]] || sources=/etc/apt/sources.list
# The merged-usr hook saves perl, the excluded paths save manuals: 141 MB instead of 254.
mmdebstrap --quiet --variant=minbase --include=usr-is-merged,ca-certificates,python3,python3-pip \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --customize-hook="$work/customize" "$VERSION_CODENAME" "$work/root.tar" "$sources" >"$work/log" 2>&1 ||
    { tail -20 "$work/log" >&2; exit 1; }
docker import \
    --change 'ENV LANG=C.UTF-8 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1' \
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
    --change 'CMD ["python3"]' "$work/root.tar" "$tag" >/dev/null
echo "$tag made"
