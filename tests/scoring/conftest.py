"""A service's log and store in a directory of their own, and events made of little."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.clock import ManualClock
from core.events import Completion, Event, LogprobSpace, Outcome, Reward, Sampling, SessionEnded, Topic
from core.ids import (
    GroupId,
    InferenceId,
    Namespace,
    OutcomeId,
    SessionId,
    new_inference_id,
)
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from core.store import SqlStore, open_sqlite
from core.store.rewards import list_rewards
from ingest.sqlite_log import SqliteEventLog
from scoring.stage import Scorer

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = Namespace("default")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Events:
    """Makes events; times are seconds after START."""

    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def turn(self, session: str, seconds: float, **fields: object) -> Completion:
        session_id = SessionId(session)
        values: dict[str, object] = {
            "inference_id": new_inference_id(session_id),
            "session_id": session_id,
            "turn_index": next(self._numbers),
            "parent_id": None,
            "group_id": GroupId("g"),
            "namespace": NAMESPACE,
            "user_id": None,
            "workload": "write",
            "purpose": "turn",
            "received_at": at(seconds),
            "messages": ({"role": "user", "content": "write add(a, b)"},),
            "sampling": Sampling(),
            "prompt_token_ids": (1, 2, 3),
            "token_ids": (4, 5),
            "logprobs": (-0.5, -0.25),
            "logprob_space": LogprobSpace(temperature=1.0),
            "trainable": True,
            "policy": "base",
            "policy_versions": (),
            "tokenizer_digest": "t",
            "renderer": "r",
            "finish_reason": "stop",
            "text": "def add(a, b): return a + b",
            "delivered_tokens": 2,
            "latency_ms": 1.0,
        }
        return Completion(**(values | fields))  # type: ignore[arg-type]

    def outcome(
        self,
        about: Completion | InferenceId | str,
        name: str,
        value: bool | float | str | None,
        seconds: float,
        **fields: object,
    ) -> Outcome:
        """`about` a turn, an inference's id, or (a plain text) a session."""
        inference_id = about.inference_id if isinstance(about, Completion) else None
        values: dict[str, object] = {
            "outcome_id": OutcomeId(f"outcome-{next(self._numbers):06}"),
            "inference_id": inference_id,
            "session_id": None if inference_id else about,
            "namespace": NAMESPACE,
            "name": name,
            "value": value,
            "observed_at": at(seconds),
            "received_at": at(seconds),
        }
        return Outcome(**(values | fields))  # type: ignore[arg-type]

    def amendment(self, of: Outcome, value: bool | float | None, seconds: float) -> Outcome:
        about = {"inference_id": of.inference_id, "session_id": of.session_id}
        return self.outcome("", of.name, value, seconds, supersedes=of.outcome_id, **about)

    def withdrawal(self, of: Outcome, seconds: float) -> Outcome:
        about = {"inference_id": of.inference_id, "session_id": of.session_id}
        return self.outcome("", of.name, None, seconds, supersedes=of.outcome_id, withdrawn=True, **about)

    def ended(self, session: str, seconds: float) -> SessionEnded:
        return SessionEnded(session_id=SessionId(session), namespace=NAMESPACE, received_at=at(seconds))


@dataclass
class World:
    """A directory with a log and a store, and scorers over them."""

    directory: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    stores: list[SqlStore] = field(default_factory=list)
    scorers: list[Scorer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = SqliteEventLog(self.directory / "log.db", partitions=4, poll_s=0.001)
        self.store = self.fresh_store("store.db")

    def fresh_store(self, name: str) -> SqlStore:
        store = open_sqlite(self.directory / name)
        self.stores.append(store)
        return store

    def scorer(self, spec: RewardSpec, batch_records: int = 512) -> Scorer:
        settings = ScoringSettings(tick_s=1e-6, batch_records=batch_records)
        scorer = Scorer(self.log, self.store, spec, settings, self.clock)
        self.scorers.append(scorer)
        return scorer

    def append(self, *events: Event) -> None:
        self.log.append_blocking(Topic.TURNS, events)

    def rewards(self, store: SqlStore | None = None) -> list[Reward]:
        """In order of emission."""
        with (store or self.store).read() as connection:
            return [reward for _, reward in list_rewards(connection, NAMESPACE, 0, 1_000_000)]

    def published(self) -> list[Reward]:
        consumer = self.log.consumer("test", [Topic.REWARDS])
        try:
            return [record.event for record in consumer.poll(1_000_000, 0) if isinstance(record.event, Reward)]
        finally:
            consumer.close()

    def close(self) -> None:
        for scorer in self.scorers:
            scorer.close()
        self.log.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def run(world: World) -> Callable[[RewardSpec, Sequence[Event], float], list[Reward]]:
    """Score these events, then let the wall clock come to so many seconds after START."""

    def run(spec: RewardSpec, events: Sequence[Event], now: float = 0) -> list[Reward]:
        world.append(*events)
        scorer = world.scorer(spec)
        drain(scorer)
        world.clock.advance_to(at(now))
        drain(scorer)
        return world.rewards()

    return run


def drain(scorer: Scorer) -> None:
    while scorer.step(0):
        pass
