"""Drafts of eval cases, and a board of them as a service has."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.clock import SystemClock
from serving.evals.cases import CaseMessage, Draft, Origin, Reuse, Review
from serving.evals.drafts.board import Board
from serving.evals.drafts.written import put_draft

SUMS = '{ kind = "contains", all = ["sum("] }'
BY = Review(by="shell:ada", at=datetime(2026, 1, 3, tzinfo=UTC))
SOURCE = Origin(
    session="s",
    turn="t",
    versions=("3",),
    received_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    reward=0.75,
    reward_spec="spec",
    outcomes=("accepted: True",),
    edited=False,
)


def draft(
    name: str = "mined-1",
    solution: str = "def total(xs):\n    return sum(xs)",
    asked: str = "Add them.",
    namespace: str = "acme",
    **source: Any,
) -> Draft:
    return Draft(
        name=name,
        messages=(CaseMessage(role="system", content="Be brief."), CaseMessage(role="user", content=asked)),
        solution=solution,
        source=SOURCE.model_copy(update=source),
        reuse=Reuse(namespace=namespace, key="k"),
    )


def board(suite: Path, *drafts: Draft, learned: Callable[[str, datetime], str | None] | None = None) -> Board:
    for each in drafts:
        put_draft(suite, each)
    return Board((suite,), SystemClock(), learned or (lambda _turn, _since: None))
