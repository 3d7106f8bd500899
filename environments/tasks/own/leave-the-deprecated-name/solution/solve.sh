#!/bin/sh
set -eu
sed -i 's/\bunquote\b/remove_quotes/g' sqlparse/sql.py
