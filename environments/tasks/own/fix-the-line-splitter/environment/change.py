"""Changes the library as this task needs it; each place must be there exactly once."""

from pathlib import Path


def change(name: str, old: str, new: str) -> None:
    path = Path("/app") / name
    text = path.read_text()
    assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


change("sqlparse/utils.py", r"LINE_MATCH = re.compile(r'(\r\n|\r|\n)')", r"LINE_MATCH = re.compile(r'(\n)')")
