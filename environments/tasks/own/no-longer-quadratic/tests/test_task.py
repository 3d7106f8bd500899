import sys

sys.path.insert(0, "/app")

import multiprocessing

import sqlparse
from sqlparse import sql, utils
from sqlparse import tokens as T

MOST_SECONDS = 3  # the machine may be busy; the square of the names takes minutes


def tokens(names):
    return [sql.Token(T.Name, name) for name in names]


def many():
    names = [f"n{number}" for number in range(100_000)]
    assert utils.distinct_names(tokens(names + names)) == names


def test_many_names_are_fast():
    process = multiprocessing.get_context("fork").Process(target=many)
    process.start()
    process.join(MOST_SECONDS)
    late = process.is_alive()
    process.kill()
    process.join()
    assert not late, "too slow"
    assert process.exitcode == 0, "wrong"


def test_it_returns_what_it_did():
    assert utils.distinct_names([]) == []
    assert utils.distinct_names(tokens(["b", "a", "b", "A", "a"])) == ["b", "a", "A"]
    mixed = [*tokens(["x"]), sql.Token(T.Number, "1"), sql.Token(T.Name.Placeholder, "?")]
    assert utils.distinct_names(mixed) == ["x", "?"]
    assert isinstance(utils.distinct_names(tokens("a")), list)


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
