import sys

sys.path.insert(0, "/app")

import pytest
import sqlparse
from sqlparse.utils import split_unquoted_newlines


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_break_splits(ending):
    assert split_unquoted_newlines(f"a{ending}b{ending}{ending}c") == ["a", "b", "", "c"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_quoted_line_breaks_do_not_split(ending):
    assert split_unquoted_newlines(f"a 'x{ending}y' b{ending}c") == [f"a 'x{ending}y' b", "c"]


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
