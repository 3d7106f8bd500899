from sqlparse import parse
from sqlparse import tokens as T


def test_counts_tokens_of_a_type_at_any_depth():
    statement = parse("select a, (select b from t) from u")[0]
    assert statement.count_tokens(T.DML) == 2
    assert statement.count_tokens(T.Keyword) == 4
    assert statement.count_tokens(T.Punctuation) == 3
