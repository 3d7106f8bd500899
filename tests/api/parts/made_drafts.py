"""Drafts of eval cases, and a board of them as a service has."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.clock import SystemClock
from serving.evals.agent_work import AgentWork, FileChange, RanCommand
from serving.evals.cases import CaseMessage, Draft, Origin, Reuse, Review
from serving.evals.drafts.board import Board
from serving.evals.drafts.tasks import state_of
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


def agent_draft(task: Path, name: str = "mined-2", **work: Any) -> Draft:
    """Return the draft of an agent's work that began from a task in `task`, which is written."""
    (task / "environment").mkdir(parents=True, exist_ok=True)
    (task / "environment" / "Dockerfile").write_text("FROM base\nWORKDIR /app\nCOPY add.py ./\n")
    (task / "environment" / "add.py").write_text("def add(one, other):\n    return one - other\n")
    (task / "task.toml").write_text('[environment]\ncpus = 1\nenv = { "A B" = "c" }\n')
    done: dict[str, Any] = {
        "changes": (
            FileChange(kind="edit", path="add.py", old="one - other\n", new='one + other  # é "x"\n'),
            FileChange(kind="write", path="new/one.py", new="x = 1\n", by_helper=True),
        ),
        "commands": (
            RanCommand(command="grep -q 'one + other' add.py", exit_code=0, failed_before=True),
            RanCommand(command="curl x && pytest", exit_code=0, doubt="network"),
            RanCommand(command="test -f new/one.py", exit_code=0),
        ),
        "unseen": ("the command sed -i s/a/b/ x",),
        "image": "blake3:1",
        "state": state_of(task, "/app"),
    }
    made = draft(name, "\n\n".join(change.text for change in done["changes"]), "Repair add.")
    return made.model_copy(update={"messages": made.messages[1:], "work": AgentWork(**done | work)})


def board(
    suite: Path,
    *drafts: Draft,
    learned: Callable[[str, datetime], str | None] | None = None,
    unusable: Callable[[Draft], str | None] = lambda _draft: None,
) -> Board:
    for each in drafts:
        put_draft(suite, each)
    return Board((suite,), SystemClock(), learned or (lambda _turn, _since: None), unusable)
