#!/bin/sh
set -eu
grep -rl --include='*.py' '\bimt\b' sqlparse | xargs sed -i 's/\bimt\b/is_match/g'
