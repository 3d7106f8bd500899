import sys

sys.path.insert(0, "/app")

import subprocess

import pytest
import sqlparse

FORMATTED = "SELECT a,\n       b\nFROM t"
OPTIONS = ("-r", "-k", "upper")


def sqlformat(*arguments, given=None):
    code = "import sys; sys.path.insert(0, '/app'); from sqlparse.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-I", "-c", code, *arguments], input=given, capture_output=True, text=True)


@pytest.mark.parametrize(("content", "code"), [(FORMATTED, 0), ("select a,b from t", 1), ("", 0)])
def test_check_says_by_its_exit_code_whether_a_file_is_formatted(tmp_path, content, code):
    path = tmp_path / "query.sql"
    path.write_text(content)
    result = sqlformat(str(path), *OPTIONS, "--check")
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")
    assert path.read_text() == content


def test_check_writes_no_file(tmp_path):
    path, out = tmp_path / "query.sql", tmp_path / "out.sql"
    path.write_text("select a,b from t")
    out.write_text("as it was")
    assert sqlformat(str(path), *OPTIONS, "--check", "-o", str(out)).returncode == 1
    assert out.read_text() == "as it was"


def test_check_reads_the_standard_input():
    assert sqlformat("-", *OPTIONS, "--check", given=FORMATTED).returncode == 0
    assert sqlformat("-", *OPTIONS, "--check", given="select 1").returncode == 1


def test_it_is_in_the_help():
    assert "--check" in sqlformat("--help").stdout


def test_without_it_nothing_changes(tmp_path):
    path = tmp_path / "query.sql"
    path.write_text("select a,b from t")
    result = sqlformat(str(path), *OPTIONS)
    assert (result.returncode, result.stdout) == (0, FORMATTED)


def test_what_worked_still_works():
    assert sqlparse.split("select 1; select 2") == ["select 1;", "select 2"]
    assert sqlparse.format("select a,b from t where x=1", reindent=True, keyword_case="upper") == (
        "SELECT a,\n       b\nFROM t\nWHERE x=1"
    )
    assert sqlparse.parse('select "a b" from s.t')[0].get_type() == "SELECT"
