import sys

sys.path.insert(0, "/app")

import re
from pathlib import Path

import sqlparse
from sqlparse import sql, utils
from sqlparse import tokens as T


def test_the_old_name_is_gone():
    files = sorted(Path("/app/sqlparse").rglob("*.py"))
    assert files
    assert [str(path) for path in files if re.search(r"\bimt\b", path.read_text())] == []


def test_the_new_name_does_what_the_old_one_did():
    token = sql.Token(T.Keyword, "select")
    assert not utils.is_match(None, t=T.Keyword)
    assert utils.is_match(token, t=T.Keyword)
    assert not utils.is_match(token, t=T.Name)
    assert utils.is_match(token, m=(T.Keyword, "SELECT"))
    assert utils.is_match(token, i=sql.Token)


def test_it_is_used_under_the_new_name():
    used = [path for path in Path("/app/sqlparse").rglob("*.py") if "is_match(" in path.read_text()]
    assert {path.name for path in used} >= {"utils.py", "sql.py", "grouping.py"}


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
