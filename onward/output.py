"""How commands show what they found: to people as tables, to programs whole."""

import json
from typing import Any

import msgspec
from rich.table import Table

from core.terminal import acts, console, visible

__all__ = ["console", "json_text", "show_json", "show_line", "show_list", "visible"]


def show_list(rows: Any, table: Table, *, as_json: bool) -> bool:
    """Show a list: its rows as JSON, whole, or as the table; return whether it was the table."""
    if as_json:
        show_json(rows)
    else:
        console().print(table)
    return not as_json


def show_json(content: Any) -> None:
    """Show it whole, to programs; a terminal that it reaches is not commanded by it: see `json_text`."""
    print(json_text(content))


def show_line(content: Any) -> None:
    """Show it to programs as one line, at once: one of many that may still come."""
    print(_without_unseen(json.dumps(msgspec.to_builtins(content), ensure_ascii=False)), flush=True)


def json_text(content: Any) -> str:
    r"""Return it as JSON in which characters that act on a terminal, and are not seen, are escaped (`\u009b`).

    What is read from it is what was given."""
    return _without_unseen(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def _without_unseen(text: str) -> str:
    """Escape in JSON what JSON does not: it escapes the controls of ASCII but one."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_in_json(each) if acts(each) else each for each in text)


def _in_json(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
