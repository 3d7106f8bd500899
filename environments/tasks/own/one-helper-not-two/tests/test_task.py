import sys

sys.path.insert(0, "/app")

from pathlib import Path

import sqlparse
from sqlparse import sql, utils


def test_the_duplicate_is_gone():
    files = sorted(Path("/app/sqlparse").rglob("*.py"))
    assert [str(path) for path in files if "_without_quotes" in path.read_text()] == []


def test_names_are_still_unquoted(monkeypatch):
    name = sqlparse.parse('select * from "my schema"."my table" t')[0].tokens[-1]
    assert (name.get_parent_name(), name.get_real_name(), name.get_alias()) == ("my schema", "my table", "t")


def test_the_helper_that_stays_is_the_one_in_use(monkeypatch):
    assert sql.remove_quotes is utils.remove_quotes
    monkeypatch.setattr(sql, "remove_quotes", lambda value: "seen")
    name = sqlparse.parse('select * from "a"."b"')[0].tokens[-1]
    assert (name.get_parent_name(), name.get_real_name()) == ("seen", "seen")


def test_no_second_place_takes_quotes_off():
    text = Path("/app/sqlparse/sql.py").read_text()
    assert text.count("[1:-1]") == 4  # which take brackets off lists of tokens


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
