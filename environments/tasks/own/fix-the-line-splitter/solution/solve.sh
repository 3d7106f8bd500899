#!/bin/sh
set -eu
sed -i 's/^LINE_MATCH = .*/LINE_MATCH = re.compile(r"(\\r\\n|\\r|\\n)")/' sqlparse/utils.py
