#!/bin/sh
set -eu
cat >/tmp/method <<'EOF'

    def count_tokens(self, ttype):
        '''Return how many tokens below this list have a type.'''
        return sum(token.ttype in ttype for token in self.flatten())
EOF
line=$(grep -n 'class Statement(TokenList)' sqlparse/sql.py | cut -d: -f1)
sed -i "$((line - 3))r /tmp/method" sqlparse/sql.py
