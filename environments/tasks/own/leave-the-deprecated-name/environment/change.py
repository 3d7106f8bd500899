"""Changes the library as this task needs it; each place must be there exactly once."""

from pathlib import Path


def change(name: str, old: str, new: str) -> None:
    path = Path("/app") / name
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


OLD = (
    """

def unquote(val):
    """
    + '"""Take the quotes off a name; deprecated."""'
    + """
    warnings.warn("unquote is deprecated: call remove_quotes", DeprecationWarning, stacklevel=2)
    return remove_quotes(val)
"""
)
change("sqlparse/utils.py", "import re\n", "import re\nimport warnings\n")
path = Path("/app/sqlparse/utils.py")
path.write_text(path.read_text() + OLD)
change("sqlparse/sql.py", "import imt, remove_quotes", "import imt, unquote")
change("sqlparse/sql.py", "return remove_quotes(prev_", "return unquote(prev_")
change("sqlparse/sql.py", "return remove_quotes(token", "return unquote(token")
