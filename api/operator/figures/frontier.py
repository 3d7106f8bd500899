"""The route `GET /v1/frontier`: what each version achieves in whole tasks, and what it takes for that.

It looks at the newest turns only, so that a request costs the same however much is stored. Where the model that all
began as has none among them, its oldest stand in: it is what the others are compared with."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.http.background import on_a_thread
from api.operator.figures.tasks import Reader, SessionTask
from api.turns.lookup import read
from core.events import Reward
from core.ids import Namespace, PolicyRef
from core.store.newest.curves import TaskDeed
from core.store.work import View

_TURNS, _MOST_TURNS = 500, 2000  # whose whole records are read
EXPENSES = ("tokens", "seconds", "cost")


def frontier_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["curves"])
    services = context.services
    reader = Reader(services.spec, services.settings.prices)

    @router.get("/v1/frontier")
    async def get_frontier(request: Request) -> Response:
        """Return, by version and harness, how many of the newest `turns`' tasks it solved, how, and for how much.

        A task is a session. `quality` is the share of tasks that passed what checked them, where any was checked, else
        of those whose reward is above 0. The base is always among the versions, if need be with as many of the oldest
        turns. `frontier` names the expenses in which no other row is both as good and as
        cheap."""
        identity = identity_of(request)
        only_parameters(request, "turns", "workload")
        limit = whole_number(request, "turns", _TURNS, _MOST_TURNS, least=1)
        workload = request.query_params.get("workload")
        found, first = await read(services, lambda view: _look(view, identity.namespace, limit))
        chosen = [each for each in found if workload in (None, each[0].workload)]
        tasks = await on_a_thread(reader.tasks, chosen)  # it reads every call and every message
        return json_response({"object": "frontier", "turns": len(found), **frontier(tasks, first)})

    return router


def _look(view: View, namespace: Namespace, limit: int) -> tuple[list[tuple[TaskDeed, Reward]], PolicyRef | None]:
    first = view.policies.first() if view.policies.newest(1) else None
    found = view.curves.deeds(namespace, limit)
    if first is not None and not any(_is_of(deed, first) for deed, _ in found):
        found += [each for each in view.curves.oldest_deeds(namespace, limit) if _is_of(each[0], first)]
    return found, first


def _is_of(deed: TaskDeed, version: PolicyRef) -> bool:
    return bool(deed.policy_versions) and deed.policy_versions[-1].version == version


def frontier(tasks: Sequence[SessionTask], first: PolicyRef | None) -> dict[str, Any]:
    """Return the rows, in the order of versions; `first` is the model that all began as."""
    checked = any(task.passed is not None for task in tasks)
    groups: dict[tuple[PolicyRef, str | None], list[SessionTask]] = defaultdict(list)
    for task in tasks:
        if not checked or task.passed is not None:
            groups[task.version, task.harness].append(task)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] or ""))
    rows = [_row(version, harness, group, checked) for (version, harness), group in ordered]
    for row in rows:
        row["base"] = row["version"] == first
        row["frontier"] = [expense for expense in EXPENSES if _is_on_frontier(row, rows, expense)]
    return {"quality_of": "checks" if checked else "rewards", "tasks": len(tasks), "versions": rows}


def _row(version: PolicyRef, harness: str | None, tasks: Sequence[SessionTask], checked: bool) -> dict[str, Any]:
    solved = sum(bool(task.passed) if checked else task.good for task in tasks)
    kept, calls = sum(task.kept_edits for task in tasks), sum(task.calls for task in tasks)
    spent = {expense: _total(tasks, expense) for expense in EXPENSES}
    return {
        "version": version,
        "harness": harness,
        "tasks": len(tasks),
        "quality": solved / len(tasks),
        "searches": fmean(task.searches for task in tasks),
        "tests": fmean(task.tests for task in tasks),
        "lint_fixes": fmean(task.lint_fixes for task in tasks),
        "parallel_share": sum(task.parallel_calls for task in tasks) / calls if calls else None,
        **{expense: _each(total, len(tasks)) for expense, total in spent.items()},
        "per_solved": {expense: _each(total, solved) for expense, total in spent.items()},
        "per_kept_edit": {expense: _each(total, kept) for expense, total in spent.items()},
    }


def _total(tasks: Sequence[SessionTask], expense: str) -> float | None:
    values = [getattr(task, expense) for task in tasks]
    return None if None in values else sum(values)


def _each(total: float | None, count: int) -> float | None:
    return None if total is None or not count else total / count


def _is_on_frontier(row: dict[str, Any], rows: Sequence[dict[str, Any]], expense: str) -> bool:
    """Return whether no other row is as good and as cheap, and better in one of the two."""
    spent, quality = row[expense], row["quality"]
    if spent is None:
        return False
    return not any(
        other["quality"] >= quality
        and other[expense] <= spent
        and (other["quality"] > quality or other[expense] < spent)
        for other in rows
    )
