#!/usr/bin/env bash
# lock.sh UV: the two locks anew, of the versions that the learner has: their images share a layer.
set -euo pipefail
uv=${1:?the uv program}
cd "$(dirname "$0")"
"$uv" pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c ../../requirements.lock \
    requirements.txt -o requirements.lock
"$uv" pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-deps engine.txt -o engine.lock
