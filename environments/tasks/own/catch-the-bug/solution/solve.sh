#!/bin/sh
set -eu
cat >tests/test_quotes.py <<'EOF'
from sqlparse.utils import remove_quotes


def test_an_open_quote_is_left_alone():
    assert remove_quotes('"a') == '"a'
    assert remove_quotes('"a"') == 'a'
EOF
