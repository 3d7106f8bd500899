"""`onward alarms`: shows alarms, acknowledges them, and takes an acknowledgement back."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table

from core.operations.alarms import in_words
from onward.commands.client import call
from onward.output import console, show_list

_STATES = {"opened": "open", "acknowledged": "acknowledged", "closed": "closed"}


def show_alarms(directory: Path, key: str | None, *, everything: bool, as_json: bool) -> None:
    table = Table(title="Alarms" if everything else "Alarms that are not closed")
    for column in ("alarm", "severity", "state", "namespace", "workload", "opened", "holds"):
        table.add_column(column, overflow="fold")
    found = _all(directory, key, "all" if everything else "open")
    for alarm in found:
        holds = alarm["holds"] if alarm["state"] == "opened" else []
        table.add_row(
            alarm["alarm_id"],
            alarm["severity"],
            _STATES[alarm["state"]],
            alarm["namespace"],
            alarm["workload"],
            alarm["opened_at"],
            ", ".join(holds) or "-",
        )
    if not show_list(found, table, as_json=as_json):
        return
    for alarm in found:
        if alarm["state"] == "opened" or everything:
            console().print(f"{alarm['alarm_id']}: {alarm['meaning']}\n  {in_words(alarm['figures'])}")
            console().print(f"  to do: {alarm['advice'] or 'look at its figures'}")
        if alarm["acknowledged_by"]:
            console().print(f"  acknowledged by {alarm['acknowledged_by']}: {alarm['note'] or '-'}")


def acknowledge(directory: Path, alarm_id: str, note: str | None, key: str | None) -> None:
    body = {} if note is None else {"note": note}
    alarm = call(directory, "POST", f"/v1/alarms/{quote(alarm_id, safe='')}/ack", key, body)
    console().print(f"{alarm['alarm_id']} is acknowledged, by {alarm['acknowledged_by']}")


def unacknowledge(directory: Path, alarm_id: str, key: str | None) -> None:
    alarm = call(directory, "POST", f"/v1/alarms/{quote(alarm_id, safe='')}/unack", key, {})
    again = ", ".join(alarm["holds"])
    console().print(
        f"{alarm['alarm_id']} is open, and nobody has acknowledged it" + (f"; it holds: {again}" if again else "")
    )


def _all(directory: Path, key: str | None, state: str) -> list[dict[str, Any]]:
    """Yield all alarms, the newest first, page by page."""
    found: list[dict[str, Any]] = []
    query = ""
    while True:
        page = call(directory, "GET", f"/v1/alarms?state={state}{query}", key)
        found += page["alarms"]
        if page["next"] is None:
            return found
        query = f"&before={page['next']}"
