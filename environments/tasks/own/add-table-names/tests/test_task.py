import sys

sys.path.insert(0, "/app")

import pytest
import sqlparse


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select 1", []),
        ("select * from a", ["a"]),
        ('select * from "Orders" o join shop.items i on o.id = i.id', ["Orders", "items"]),
        ("select * from a, b as c, `d e`", ["a", "b", "d e"]),
        ("insert into t (x) select y from u; update v set x = 1", ["t", "u", "v"]),
        ("select * from (select * from inner_one) q left join outer_one on 1 = 1", ["inner_one", "outer_one"]),
        ("select * from a join a on 1 = 1; select * from b", ["a", "b"]),
        ("select * from t where x in (select y from u)", ["t", "u"]),
    ],
)
def test_names_of_tables(sql, names):
    assert list(sqlparse.table_names(sql)) == names


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
