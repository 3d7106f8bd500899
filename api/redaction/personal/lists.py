"""Lists of names. They are files beside this one: what is in none of them is known by its surroundings alone."""

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent


def _read(name: str) -> frozenset[str]:
    lines = (_HERE / name).read_text(encoding="utf-8").split("\n")
    return frozenset(line for line in lines if line and not line.startswith("#"))


FIRST: Final = _read("first_names.txt")
FIRST_AND_WORDS: Final = _read("first_names_and_words.txt")
LAST: Final = _read("last_names.txt")
NO_NAMES: Final = _read("words.txt")
