#!/bin/sh
# Install the clients that `make clients` tries into build/clients: what their registries have, by the locks beside this.
# usage: install.sh UV PYTHON
set -eu
uv=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
build=$here/../../build/clients
mkdir -p "$build/node"
for each in node sdks aider verl; do
    [ -x "$build/$each-python/bin/python" ] || "$uv" venv --quiet --python "$python" "$build/$each-python"
    VIRTUAL_ENV=$build/$each-python "$uv" pip sync --quiet --require-hashes "$here/locks/$each.lock"
done
cp "$here/node/package.json" "$here/node/package-lock.json" "$build/node/"
cd "$build/node"
# Not `npm ci`: it wants the packages of all platforms in the lock, and some registries have but this one's.
PATH=$build/node-python/bin:$PATH npm install --no-save --no-audit --no-fund --loglevel=error
