import sys

sys.path.insert(0, "/app")

import re
import warnings
from pathlib import Path

import pytest
import sqlparse
from sqlparse import utils


def test_the_library_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        name = sqlparse.parse('select * from "my schema"."my table" t')[0].tokens[-1]
        assert (name.get_parent_name(), name.get_real_name(), name.get_alias()) == ("my schema", "my table", "t")


def test_no_other_file_names_it():
    files = sorted(Path("/app/sqlparse").rglob("*.py"))
    naming = [path.name for path in files if re.search(r"\bunquote\b", path.read_text())]
    assert naming == ["utils.py"]


def test_users_may_still_call_it_and_are_warned():
    with pytest.warns(DeprecationWarning, match="remove_quotes"):
        assert utils.unquote('"a"') == "a"


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
