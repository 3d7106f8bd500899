#!/bin/sh
set -eu
cat >>sqlparse/__init__.py <<'EOF'


def table_names(sql):
    '''Return the names of the tables of all statements, each once, without quotes and schemas.'''
    names = {}
    for statement in parse(sql):
        for token in _tables(statement):
            names[token.get_real_name()] = None
    return list(names)


def _tables(group):
    '''Yield the names that stand where a table is asked for, in the order of the text.'''
    asked = False
    for token in group.tokens:
        if token.is_whitespace or isinstance(token, _sql.Comment):
            continue
        if token.ttype in tokens.Keyword:
            asked = token.normalized.endswith('JOIN') or token.normalized in ('FROM', 'INTO', 'UPDATE')
        elif asked and isinstance(token, _sql.IdentifierList):
            for each in token.get_identifiers():
                yield from _named(each)
            asked = False
        elif asked and token.is_group:
            yield from _named(token)
            asked = False
        elif token.is_group:
            yield from _tables(token)


def _named(token):
    if isinstance(token, (_sql.Identifier, _sql.Function)) and not isinstance(token.tokens[0], _sql.Parenthesis):
        yield token
    else:
        yield from _tables(token)
EOF
sed -i 's/^from sqlparse import sql$/from sqlparse import sql\nfrom sqlparse import sql as _sql/' sqlparse/__init__.py
