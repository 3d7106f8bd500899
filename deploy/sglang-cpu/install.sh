#!/usr/bin/env bash
# install.sh DIR: SGLang 0.5.23 for a CPU into a virtual environment of its own, pinned by hashes.
# Nothing of SGLang is changed; `sgl_kernel`, which has no build for plain CPUs, is the one beside this script.
set -euo pipefail
directory=${1:?the directory of the virtual environment}
here=$(cd "$(dirname "$0")" && pwd)
test -x "$directory/bin/python" || "${PYTHON:-python3.11}" -m venv "$directory"
"$directory/bin/python" -c 'import uv' 2>/dev/null ||
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.8
export VIRTUAL_ENV=$directory
"$directory/bin/uv" pip install --quiet --require-hashes -r "$here/requirements.lock"
"$directory/bin/uv" pip install --quiet --require-hashes --no-deps -r "$here/engine.lock"
packages=$("$directory/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
rm -rf "$packages/sgl_kernel"
cp -r "$here/sgl_kernel" "$packages/"
# A server starts four processes that import thousands of modules: compiled once here, also where Python is told not to
# write bytecode. (Some packages hold files for other Pythons: these fail, and nobody imports them.)
"$directory/bin/python" -m compileall -q -j 0 "$packages" >/dev/null 2>&1 || true
