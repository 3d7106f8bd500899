#!/bin/sh
set -eu
line=$(grep -n "options.get('indent_width', 2)" sqlparse/formatter.py | cut -d: -f1)
echo "sqlparse/formatter.py:$line" >answer.txt
