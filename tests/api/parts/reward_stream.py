"""Helpers that put rewards into a service's store and read its stream of them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from api_harness import Service

from core.events import Reward
from core.ids import InferenceId, Namespace, SessionId

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def reward(number: int, namespace: str = "default") -> Reward:
    return Reward(
        inference_id=InferenceId(f"i{number}"),
        session_id=SessionId("s"),
        namespace=Namespace(namespace),
        workload="chat",
        revision=0,
        value=number / 10,
        components={"accepted": number / 10},
        outcome_ids=(),
        first_outcome_at=None,
        last_outcome_at=None,
        why="a test",
        spec="spec",
        final=True,
        decided_at=NOW,
    )


def put(service: Service, *numbers: int, namespace: str = "default") -> None:
    with service.store.work() as work:
        work.rewards.put([(0, reward(number, namespace)) for number in numbers])


def events(lines: Iterator[str], count: int) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    while len(found) < count:
        line = next(lines)
        if line.startswith("id: "):
            found.append((int(line[4:]), json.loads(next(lines).removeprefix("data: "))))
    return found
