#!/usr/bin/env bash
# lock.sh UV: the two locks anew.
set -euo pipefail
uv=${1:?the uv program}
cd "$(dirname "$0")"
"$uv" pip compile --quiet --python-version 3.11 --generate-hashes --no-header requirements.txt -o requirements.lock
"$uv" pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-deps engine.txt -o engine.lock
