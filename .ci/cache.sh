#!/usr/bin/env bash
# What was installed or built once, kept for later checkouts on the same machine.
#   .ci/cache.sh restore NAME [KEY [PATH]]  puts what is kept into this checkout: status 0 if PATH is there then;
#                                           else it prints `miss`, status 1, and PATH has to be made
#   .ci/cache.sh keep NAME [KEY [PATH]]     keeps what was made since; says why where it does not, which is no failure
#   .ci/cache.sh key NAME                   prints the key of a NAME in the table below, as `restore` and `keep` take it
# Only what was made after a miss is kept: what a checkout had before may hold more than its files say.
# Entries lie in ${ONWARD_CI_CACHE:-~/.cache/onward-ci}/NAME/KEY (a check tells us by CHECK_CACHE), and the two of each
# NAME that were used last stay.
# They are made under another name and renamed, so that a kill or a full disk leaves nothing by halves. Nobody can
# change what is kept by working with what was restored: small files are copied, large ones are linked, and whoever
# writes into a large one all the same makes the entry invalid, which is found and removed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${CHECK_CACHE:-${ONWARD_CI_CACHE:-$HOME/.cache/onward-ci}}
python=${PYTHON:-python3.11}
kept=2
free_kb=4000000 # what a copy leaves free on the disk
cd "$root"

# The table: where each NAME is, which files say what is in it, and what must work once it is restored.
describe() {
    works=true
    case $1 in
    venv)
        path=.venv files=(requirements.lock deploy/reasoning.lock deploy/no_wheel.py)
        works=".venv/bin/uv --version && .venv/bin/pytest --version"
        ;;
    sglang)
        path=.sglang files=(deploy/sglang-cpu)
        works=".sglang/bin/python -m uv --version"
        ;;
    browser)
        path=build/browser files=(deploy/browser.py deploy/debian.py)
        works="build/browser/chromium --version" # it brings those libraries that the system lacked
        ;;
    ide) path=build/ide files=(deploy/ide.py) ;;
    clients)
        path=build/clients files=(tests/clients/install.sh tests/clients/locks tests/clients/node/*.json)
        works="build/clients/node-python/bin/python --version"
        ;;
    smollm2) path=models/smollm2 files=(deploy/smollm2) ;;
    *) echo "cache.sh: $1 stands in no table" >&2 && exit 2 ;;
    esac
}

of_python() { "$python" -c "$1"; }

made_with() { # what decides besides those files
    echo "entries of the first form, on $(uname -m), $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release)"
    case $1 in
    venv | sglang | clients) of_python 'import os, sys; print(sys.version, os.path.realpath(sys.executable))' ;;
    ide) node --version ;;
    esac
    if test "$1" = venv; then # of pyproject.toml what the installed program consists of, and no settings of tools
        echo "${TORCH_WHEELS:-} $(grep '^UV_VERSION' Makefile)"
        of_python 'import tomllib; of = tomllib.load(open("pyproject.toml", "rb"))
print(of["build-system"], of["project"])'
    fi
}

key_of() {
    describe "$1"
    { made_with "$1" && find "${files[@]}" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } |
        sha256sum | cut -c -32
}

contents() { # of a directory: names, kinds, sizes, times, rights
    (cd "$1" && find . -mindepth 1 ! -type d -printf '%P %y %s %T@ %m %l\n' | LC_ALL=C sort | sha256sum)
}

copy() { # FROM TO, absolute: anew what is small, by a link what is large
    mkdir "$2" && cd "$1" &&
        find . -mindepth 1 ! \( -type f -size +1023k \) -print0 |
        tar --null --no-recursion -T - -c -f - | tar -C "$2" -xp -f - 2>&1 | tail -1 >&2 && # it names each file
        find . -type f -size +1023k -print0 >"$2.large" &&
        { xargs -0 -r cp -al --parents -t "$2" <"$2.large" 2>/dev/null ||
            xargs -0 -r cp -a --remove-destination --reflink=auto --parents -t "$2" <"$2.large"; } && # of another disk
        rm "$2.large" && cd "$root"
}

move_in() { # DIRECTORY FROM TO: what is of the checkout FROM becomes TO's
    local from to
    from=$(printf '%s' "$2" | sed 's/[][\.*^$+?(){}|,]/\\&/g') to=$(printf '%s' "$3" | sed 's/[\&,]/\\&/g')
    # Scripts name their interpreter; and where the program is that was installed from a checkout stands in two files.
    find "$1" -type f -size -64k \( -path '*/bin/*' -o -name pyvenv.cfg -o -name '*.pth' -o -name direct_url.json \
        -o -name chromium \) -exec grep -lIZF -e "$2" {} + |
        xargs -0 -r sed -i -E "s,(^|[^A-Za-z0-9._/-]|//)$from(/|[^A-Za-z0-9._-]|\$),\1$to\2,g"
    find "$1" -maxdepth 1 -name .installed -exec touch {} + # newer than the locks of a fresh checkout, for make
}

restore() {
    rm -f "$missing"
    test ! -e "$path" || { echo "$name: $path is there" && return; }
    local entry=$cache/$name/$key
    made=$root/build/.restored.$$
    if ! test -d "$entry"; then missed; fi
    if test "$(contents "$entry/tree")" != "$(cat "$entry/contents")"; then
        rm -rf "$entry"
        missed "what was kept has been changed, and is removed"
    fi
    mkdir -p "$(dirname "$path")"
    trap 'rm -rf "$made" "$made.large"' EXIT
    copy "$entry/tree" "$made" || missed "it could not be copied"
    move_in "$made" "$(cat "$entry/checkout")" "$root" || true # grep finds nothing where nothing names the checkout
    mv -T "$made" "$path"
    if ! (eval "$works") >/dev/null 2>&1; then
        rm -rf "$path" "$entry"
        missed "what was kept does not work here, and is removed"
    fi
    touch "$entry"
    echo "$name: $path is as it was kept"
}

missed() {
    test -z "$*" || echo "$name: $*" >&2
    echo "$key" >"$missing"
    echo miss
    exit 1
}

keep() {
    local entry=$cache/$name/$key size_kb
    made=$cache/$name/.new.$$
    if test -d "$entry"; then touch "$entry" && return; fi
    test -d "$path" || { echo "$name: no $path to keep" >&2 && return; }
    if test "$(cat "$missing" 2>/dev/null)" != "$key"; then
        echo "$name: not kept, since $path was there before" >&2 && return
    fi
    find "$cache/$name" -maxdepth 1 -name '.new.*' -exec rm -rf {} + # of those who were killed: we hold the lock
    size_kb=$(du -sk "$path" | cut -f 1)
    if test "$(df --output=avail -k "$cache" | tail -1)" -lt $((size_kb + free_kb)); then
        echo "$name: not kept, since the disk is too full" >&2 && return
    fi
    trap 'rm -rf "$made"' EXIT
    mkdir "$made"
    { copy "$root/$path" "$made/tree" && contents "$made/tree" >"$made/contents" && echo "$root" >"$made/checkout" &&
        mv -T "$made" "$entry"; } || { echo "$name: not kept" >&2 && return; }
    rm -f "$missing"
    ls -1t "$cache/$name" | tail -n +$((kept + 1)) | while read -r old; do rm -rf "${cache:?}/$name/$old"; done
    echo "$name: $path is kept"
}

command=${1:?restore, keep or key} name=${2:?what}
case $command in
key) key_of "$name" ;;
restore | keep)
    key=${3:-}
    test -n "$key" || key=$(key_of "$name")
    works=true path=${4:-}
    test -n "$path" || describe "$name"
    missing=build/.missing-$name # which key was a miss
    mkdir -p build "$cache/$name"
    exec 9>"$cache/.$name.lock"
    flock 9
    $command
    ;;
*) echo "cache.sh: $command?" >&2 && exit 2 ;;
esac
