#!/usr/bin/env bash
# End the engine that docker_start.sh started, with its containers and networks, and take away what it left on the
# machine. Its images go too if there were none before. Does nothing if the engine was another's.
set -uo pipefail

state=${DOCKER_STATE:-/run/r2ccl-docker}
if [[ ! -f $state/pid ]]; then
    rm -rf "$state"
    exit 0
fi
pid=$(<"$state/pid")

mapfile -t containers < <(docker ps --all --quiet)
((${#containers[@]})) && docker rm --force "${containers[@]}" >/dev/null
docker network prune --force >/dev/null # the bridges with it
kill "$pid" 2>/dev/null                 # and it ends its containerd
for _ in {1..200}; do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
done
if kill -0 "$pid" 2>/dev/null; then
    echo "dockerd $pid does not end" >&2
    exit 1
fi

grep -oE ' (/var/lib|/var/run|/run)/docker[^ ]*' /proc/mounts | sort -r | while read -r mount; do umount "$mount"; done
find /sys/fs/cgroup -depth -type d -path '/sys/fs/cgroup/*docker*' -exec rmdir {} + 2>/dev/null
[[ -e $state/mounted-cgroup2 ]] && umount /sys/fs/cgroup
[[ -e $state/images-are-ours ]] && rm -rf /var/lib/docker
rm -rf "$state"
echo "dockerd $pid is gone"
