"""Orders to exclude turns: what each would change, giving one, and how far they are obeyed."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from core.errors import OnwardError
from onward.commands.client import call, give_order

_LOOK_S = 1.0
_MOST_NAMED = 3  # of each criterion, in a table


def show_preview(directory: Path, body: dict[str, Any], key: str | None) -> dict[str, Any]:
    foreseen: dict[str, Any] = call(directory, "POST", "/v1/exclusions/preview", key, body)
    for sentence in foreseen["says"]:
        Console().print(sentence, markup=False)
    if foreseen["under_way"]:
        waiting = ", ".join(map(str, foreseen["under_way"]))
        Console().print(f"Still being obeyed, and then together with this: order {waiting}.", markup=False)
    return foreseen


def exclude_turns(directory: Path, body: dict[str, Any], why: str, key: str | None, *, roll_back: bool) -> None:
    """Give an order, and with `roll_back` one to serve the version before. Raises OnwardError where there is none."""
    back_to = None
    if roll_back:
        back_to = call(directory, "POST", "/v1/exclusions/preview", key, body)["roll_back_to"]
        if back_to is None:
            raise OnwardError("--roll-back: no earlier version is to be served instead; see --preview")
    given = call(directory, "POST", "/v1/exclusions", key, {**body, "why": why})
    said = f"order {given['exclusion_id']} is given, by {given['by']}; `onward exclusions` shows how it goes"
    Console().print(said, markup=False)
    if back_to is not None:  # after the order, so that the learner goes on with what is left
        give_order(directory, "rollback", back_to, why, key)


def include_again(directory: Path, order: int, why: str, key: str | None) -> None:
    lifted = call(directory, "POST", f"/v1/exclusions/{order}/lift", key, {"why": why})
    said = f"order {order} is lifted, by {lifted['lifted_by']}: what is rewarded from now on trains again"
    Console().print(said, markup=False)


def show_exclusions(directory: Path, key: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(directory, "GET", "/v1/exclusions", key)["data"]
    table = Table(title="Turns that are excluded")
    for column in ("order", "state", "what", "by", "since", "why", "came of it"):
        table.add_column(column, overflow="fold")
    for each in found:
        cells = (
            str(each["exclusion_id"]),
            each["state"],
            selection_in_words(each["selection"]),
            each["by"],
            each["ordered_at"],
            each["why"],
            outcome_in_words(each),
        )
        table.add_row(*map(Text, cells))  # names and reasons may hold what rich takes for markup
    Console().print(table)
    return found


def follow_exclusions(directory: Path, key: str | None) -> None:
    """Show the progress of the orders that are being obeyed, until none is."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("waits for the learner", total=None, pace="")
        while (order := _under_way(directory, key)) is not None:
            told = order["relearning"] or {}
            if told:
                progress.update(
                    task,
                    description=f"order {order['exclusion_id']}",
                    total=told.get("updates", 0),
                    completed=_done(told),
                    pace=_pace(told),
                )
            time.sleep(_LOOK_S)
    show_exclusions(directory, key)


def _under_way(directory: Path, key: str | None) -> dict[str, Any] | None:
    found = call(directory, "GET", "/v1/exclusions", key)["data"]
    return next((each for each in reversed(found) if (each["relearning"] or {}).get("ended_at") is None), None)


def selection_in_words(selection: dict[str, Any]) -> str:
    """Say what an order selects: `user ab12, since 2026-11-21T15:00:00Z`."""
    lists = {name: values for name, values in selection.items() if isinstance(values, list)}
    words = []
    for name, values in lists.items():
        more = selection.get(f"{name}_selected", len(values)) - _MOST_NAMED
        named = ", ".join(map(str, values[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
        words.append(f"{name}: {named}")
    words += [f"{name} {selection[name]}" for name in ("since", "until") if name in selection]
    return "; ".join([f"namespace {selection['namespace']}", *words])


def outcome_in_words(order: dict[str, Any]) -> str:
    """Say what came of an order so far."""
    told = order["relearning"]
    if told is None:
        found = "no learner has seen it yet"
    elif told.get("note"):
        found = told["note"]
    elif told.get("ended_at") is None:
        found = f"{_done(told)} of {told.get('updates', 0)} updates made again{_pace(told)}"
    else:
        found = f"version {told['version']}, upon {told['start']}: {told.get('made_again', 0)} updates made again"
        found += f", {told['emptied']} held nothing else" if told.get("emptied") else ""
        found += f", {told['lost']} could not be made again" if told.get("lost") else ""
    if told is not None and told.get("unknown"):
        found += f"; {told['unknown']} turns are gone from the store, and may have been meant"
    if order["lifted_at"] is None:
        return found
    return f"{found}; lifted {order['lifted_at']} by {order['lifted_by']}: {order['lifted_why']}"


def _done(told: dict[str, Any]) -> int:
    return sum(told.get(name, 0) for name in ("made_again", "emptied", "lost"))


def _pace(told: dict[str, Any]) -> str:
    if told.get("per_s") is None or told.get("left_s") is None:
        return ""
    return f", {told['per_s']:.1f} a second, {told['left_s']:.0f} s left"
