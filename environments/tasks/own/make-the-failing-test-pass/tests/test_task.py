import sys

sys.path.insert(0, "/app")

import sqlparse
from sqlparse import tokens as T


def count(sql, ttype):
    return sqlparse.parse(sql)[0].count_tokens(ttype)


def test_counts_tokens_of_a_type_at_any_depth():
    assert count("select a, (select b from t) from u", T.DML) == 2
    assert count("select a, (select b from t) from u", T.Keyword) == 4
    assert count("select a, (select b from t) from u", T.Punctuation) == 3


def test_counts_nothing_where_there_is_nothing():
    assert count("select a", T.Comment) == 0
    assert count("select f(g(h(1)))", T.Number.Integer) == 1


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
