"""Changes the library as this task needs it; each place must be there exactly once."""

from pathlib import Path


def change(name: str, old: str, new: str) -> None:
    path = Path("/app") / name
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


change("sqlparse/sql.py", "import imt, remove_quotes", "import imt")
change("sqlparse/sql.py", "return remove_quotes(prev_", "return _without_quotes(prev_")
change("sqlparse/sql.py", "return remove_quotes(token", "return _without_quotes(token")
DUPLICATE = (
    """\
def _without_quotes(text):
    """
    + '"""Take the quotes off a text."""'
    + """
    if text is None:
        return None
    first, last = text[0], text[-1]
    if first == last and first in ('"', "'", '`'):
        return text[1:-1]
    return text


"""
)
change("sqlparse/sql.py", "class NameAliasMixin:", DUPLICATE + "class NameAliasMixin:")
