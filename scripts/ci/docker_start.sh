#!/usr/bin/env bash
# Start a Docker engine on a Debian machine that has none running (as root, without systemd); install it if need be.
#
# An engine that already runs is used and left alone. One that this script started is known by the file `pid` in the
# state directory; docker_stop.sh ends it and takes away what it left. It starts closed: no docker0, no rules of
# iptables, no forwarding, so it changes nothing for anybody else's network. Builds then say `--network host`.
set -euo pipefail

state=${DOCKER_STATE:-/run/r2ccl-docker}
wanted=("dockerd docker.io" "mmdebstrap mmdebstrap" "ip iproute2" "nft nftables" "nsenter util-linux")

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install_missing() {
    local pair packages=()
    for pair in "${wanted[@]}"; do
        command -v "${pair% *}" >/dev/null || packages+=("${pair#* }")
    done
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || packages+=(docker-compose)
    ((${#packages[@]})) || return 0
    echo "installing ${packages[*]}"
    # What they only recommend would change more of the machine: cgroup mounts, AppArmor, restarts of services.
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >"$state/apt.log" 2>&1 ||
        { tail -20 "$state/apt.log" >&2; exit 1; }
}

forget_killed_engine() { # its pid files, if they name no engine: dockerd would wait for a containerd that is not there
    local file pid
    for file in /var/run/docker.pid /var/run/docker/containerd/containerd.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        grep -qE '^(dockerd|containerd)$' "/proc/$pid/comm" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$pid/status" ||
            rm -f "$file"
    done
}

start() { # start DRIVER: returns 0 when the engine answers
    forget_killed_engine
    setsid dockerd --storage-driver="$1" --bridge=none --iptables=false --ip6tables=false --ip-forward=false \
        --ip-masq=false >"$state/dockerd.log" 2>&1 </dev/null &
    local pid=$!
    echo "$pid" >"$state/pid"
    for _ in {1..300}; do
        kill -0 "$pid" 2>/dev/null || break
        if answers; then
            echo "dockerd $pid answers ($1)"
            return 0
        fi
        sleep 0.1
    done
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    rm -f "$state/pid"
    return 1
}

if answers; then
    echo "an engine is running; it will be left as it is"
    exit 0
fi
if (($(id -u) != 0)) || ! command -v apt-get >/dev/null; then
    echo "no Docker engine answers, and it can be installed and started here only as root on Debian or Ubuntu" >&2
    exit 1
fi

mkdir -p "$state"
[[ -e /var/lib/docker ]] || touch "$state/images-are-ours"
install_missing
if ! grep -q ' /sys/fs/cgroup' /proc/mounts; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    touch "$state/mounted-cgroup2"
fi
# Where the file system does not do overlays there is a slow way; any other failure would only be hidden by it.
start overlay2 || { grep -q graphdriver "$state/dockerd.log" && start vfs; } || {
    tail -30 "$state/dockerd.log" >&2
    echo "dockerd did not come up" >&2
    exit 1
}
