"""Orders to erase: what each would remove, giving one, how far it is, and the statement at its end."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.errors import OnwardError
from onward.commands.client import call

_LOOK_S = 1.0


def show_preview(directory: Path, body: dict[str, Any], key: str | None) -> None:
    for sentence in call(directory, "POST", "/v1/erasures/preview", key, body)["says"]:
        Console().print(sentence, markup=False)


def erase_all(directory: Path, body: dict[str, Any], why: str | None, key: str | None, *, follow: bool) -> None:
    """Give an order, and with `follow` wait until it is obeyed everywhere and print the statement."""
    show_preview(directory, body, key)
    asked = {"namespace": body.get("namespace"), "why": why}
    if "user" in body:
        path = f"/v1/users/{quote(body['user'], safe='')}"
    elif "session" in body:
        path = f"/v1/sessions/{quote(body['session'])}"
    elif "organisation" in body:
        path = f"/v1/organisations/{quote(body['organisation'], safe='')}"
    else:
        path = f"/v1/namespaces/{quote(asked.pop('namespace') or '', safe='')}"
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    given = call(directory, "DELETE", f"{path}?{query}" if query else path, key)
    number = given["erasure_id"]
    Console().print(f"erasure {number} is ordered, by {given['by']}; it is due by {given['deadline_at']}", markup=False)
    if follow:
        print(_awaited(directory, number, key)["statement"])


def _awaited(directory: Path, number: int, key: str | None) -> dict[str, Any]:
    said = None
    while True:
        found: dict[str, Any] = call(directory, "GET", f"/v1/erasures/{number}", key)
        if found["state"] == "done":
            return found
        if (now := _progress(found)) != said:
            said = now
            Console(stderr=True).print(said, markup=False)
        time.sleep(_LOOK_S)


def show_erasures(directory: Path, key: str | None) -> None:
    table = Table(title="Erasures")
    for column in ("number", "state", "what", "ordered", "due", "how far"):
        table.add_column(column, overflow="fold")
    for each in call(directory, "GET", "/v1/erasures", key)["data"]:
        what = f"{each['kind']} {each['subject']} of {each['namespace']}, {each['sessions']} sessions"
        cells = str(each["erasure_id"]), each["state"], what, each["ordered_at"], each["deadline_at"], _progress(each)
        table.add_row(*map(Text, cells))
    Console().print(table)


def _progress(order: dict[str, Any]) -> str:
    done = ", ".join(order["steps"]) or "nothing yet"
    if order["done_at"] is not None:
        return f"done {order['done_at']}"
    waits = f"; waits: {order['waits_for']}" if order["waits_for"] else ""
    told = [each for each in order.get("relearning", ()) if each.get("updates")]
    again = [f"{each.get('made_again', 0)} of {each['updates']} updates made again" for each in told]
    return f"done: {done}{waits}" + (f" ({', '.join(again)})" if again else "")


def check_statement(file: Path) -> None:
    """Print what a statement says and who signed it. Raises OnwardError where the signature is wrong."""
    from ingest.erasure.statement import verified

    try:
        statement, public_key = verified(file.read_text())
    except (OSError, ValueError) as error:
        raise OnwardError(f"{file}: {error}") from error
    Console().print(f"signed by the key {public_key}", markup=False)
    Console().print_json(data=statement)
