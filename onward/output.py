"""How commands show what they found: to people as tables, to programs whole."""

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

_WIDE = 100_000  # where nobody looks, no line is folded


def console() -> Console:
    """Return a console on which names are shown as they are, and which folds lines only where a terminal would."""
    found = Console(markup=False, highlight=False)
    return found if found.is_terminal else Console(markup=False, highlight=False, width=_WIDE)


def show_list(rows: Any, table: Table, *, as_json: bool) -> bool:
    """Show a list: its rows as JSON, whole, or as the table; return whether it was the table."""
    if as_json:
        show_json(rows)
    else:
        console().print(table)
    return not as_json


def show_json(content: Any) -> None:
    """Show it whole, to programs."""
    print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())
