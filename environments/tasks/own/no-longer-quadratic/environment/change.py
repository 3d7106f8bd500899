"""Changes the library as this task needs it; each place must be there exactly once."""

from pathlib import Path


def change(name: str, old: str, new: str) -> None:
    path = Path("/app") / name
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


SLOW = (
    """

def distinct_names(tokens):
    """
    + '"""Return the values of name tokens, each once, in the order in which they came first."""'
    + """
    names = []
    for token in tokens:
        if token.ttype in T.Name and token.value not in names:
            names = names + [token.value]
    return names
"""
)
change(
    "sqlparse/utils.py",
    "from contextlib import contextmanager\n",
    "from contextlib import contextmanager\n\nfrom sqlparse import tokens as T\n",
)
path = Path("/app/sqlparse/utils.py")
path.write_text(path.read_text() + SLOW)
