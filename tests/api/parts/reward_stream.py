"""Helpers that put rewards into a service's store and read its stream of them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import made_events
import msgspec
from api_harness import Service

from core.events import Reward
from core.ids import Namespace

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def reward(number: int, namespace: str = "default") -> Reward:
    value = number / 10
    own = {"namespace": Namespace(namespace), "value": value, "components": {"accepted": value}}
    return made_events.reward(f"i{number}", decided_at=NOW, final=True, workload="chat", **own)


def put(service: Service, *numbers: int, namespace: str = "default", size: int = 0, character: str = "x") -> None:
    """Put rewards of these numbers; `size`: the characters of why each was given, 0 for the usual ones."""
    made = [reward(number, namespace) for number in numbers]
    if size:
        made = [msgspec.structs.replace(each, why=character * size) for each in made]
    with service.store.work() as work:
        work.rewards.put([(0, each) for each in made])


def events(lines: Iterator[str], count: int) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    while len(found) < count:
        line = next(lines)
        if line.startswith("id: "):
            found.append((int(line[4:]), json.loads(next(lines).removeprefix("data: "))))
    return found
