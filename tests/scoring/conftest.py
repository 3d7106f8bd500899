"""A service's log and store in a directory of their own, and short ways to make events."""

import itertools
import random
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from ready_stores import open_in_memory, open_ready
from stepping import step

from core.clock import ManualClock
from core.events import Completion, Event, LogprobSpace, Outcome, Reward, Sampling, SessionEnded, Topic
from core.ids import (
    GroupId,
    InferenceId,
    Namespace,
    OutcomeId,
    SessionId,
    session_routing,
)
from core.ports import Announcer, Record
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from core.store import SqlStore
from ingest.routing import partition_of
from ingest.sqlite.log import SqliteEventLog
from scoring.ledger.transaction import LedgerTransaction
from scoring.stage import Scorer

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = Namespace("default")


def inference_id(session_id: SessionId, number: int) -> InferenceId:
    """Return the id of a number; the last 16 bits are the session's, as in `core.ids`."""
    return InferenceId(str(uuid.UUID(int=number << 16 | session_routing(session_id))))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1.0, "wait_s": 20, "default": False, "false_weight": -0.1},
            "rejected": {"type": "boolean", "weight": -0.5, "decides": True},
            "tests_passed": {"type": "boolean", "weight": 0.25, "false_weight": -0.25, "aggregation": "mean"},
            "rating": {"type": "number", "weight": 0.7, "minimum": -1, "maximum": 1, "aggregation": "max"},
            "survived": {"type": "boolean", "weight": 0.3, "wait_s": 40, "aggregation": "earliest"},
            "comment": {"type": "text"},
        },
        "session": {"idle_timeout_s": 35, "end_wait_s": 5},
    }
)


def records_of(events: Sequence[Event], partitions: int = 4) -> list[Record]:
    """Return the events as records of a log."""
    ends: dict[int, int] = {}
    records = []
    for event in events:
        partition = partition_of(event, partitions)
        offset = ends[partition] = ends.get(partition, -1) + 1
        records.append(
            Record(topic=Topic.TURNS, partition=partition, offset=offset, appended_at=START, raw=b"", event=event)
        )
    return records


def score(spec: RewardSpec, events: Sequence[Event], batch: int = 1000, until: datetime | None = None) -> list[Reward]:
    """Score events without a log, by ledger transactions on a store in memory.

    `until` lets time pass at the end."""
    store = open_in_memory()
    rewards = []
    records = records_of(events)
    for start in range(0, len(records), batch):
        transaction = LedgerTransaction(spec)
        with store.work() as work:
            transaction.take(work, records[start : start + batch])
        transaction.count_oddities()
        rewards += transaction.rewards
    if until is not None:
        transaction = LedgerTransaction(spec)
        with store.work() as work:
            transaction.let_pass(work, dict.fromkeys(range(4), until))
        rewards += transaction.rewards
    store.close()
    return rewards


def last_values(rewards: Sequence[Reward]) -> dict[InferenceId, float]:
    return {reward.inference_id: reward.value for reward in rewards}


def random_events(seed: int, count: int) -> list[Event]:
    """Return random sessions with everything that can happen in them.

    Turns, outcomes of all kinds, late ones, amendments, withdrawals, repetitions, ends, outcomes of turns that come
    later or never, and clocks that disagree."""
    rng = random.Random(seed)
    make = Events()
    sessions = [f"session-{seed}-{index}" for index in range(max(3, count // 20))]
    turns: list[Completion] = []
    outcomes: list[Outcome] = []
    pending: list[Completion] = []  # spoken of before they are in the log
    events: list[Event] = []
    now = 0.0
    while len(events) < count:
        now += rng.expovariate(1.0)
        moment = now + rng.uniform(-2, 2)
        session = rng.choice(sessions)
        kind = rng.choices(
            ["turn", "outcome", "session", "amend", "withdraw", "end", "early", "again"], [6, 8, 2, 2, 2, 1, 1, 1]
        )[0]
        event: Event | None = None
        if kind == "turn" or (kind != "early" and not turns):
            purpose = rng.choice(["turn", "turn", "turn", "suggestion", "side"])
            event = make.turn(
                session, moment, purpose=purpose, text=rng.choice(["", "x", "y"]), session_done=rng.random() < 0.1
            )
            turns.append(event)
        elif kind == "early":
            turn = make.turn(session, moment + rng.uniform(0, 30))
            event = make.outcome(turn, *_said(rng), moment)
            if rng.random() < 0.7:
                pending.append(turn)
        elif kind in ("outcome", "session"):
            event = make.outcome(rng.choice(turns) if kind == "outcome" else session, *_said(rng), moment)
        elif kind == "end":
            event = make.ended(session, moment)
        elif kind == "again":
            event = rng.choice(events)
        elif outcomes:
            of = rng.choice(outcomes)
            event = (
                make.withdrawal(of, moment)
                if kind == "withdraw"
                else make.amendment(of, _said(rng, of.name)[1], moment)
            )
        if isinstance(event, Outcome) and kind != "again":
            outcomes.append(event)
        if event is not None:
            events.append(event)
        if pending and rng.random() < 0.3:
            turns.append(pending.pop(0))
            events.append(turns[-1])
    return events


def _said(rng: random.Random, name: str | None = None) -> tuple[str, bool | float | str]:
    name = name or rng.choice(list(SPEC.outcomes))
    if name == "rating":
        return name, rng.choice([-1.0, -0.5, 0.5, 1.0])
    return name, "well" if name == "comment" else rng.random() < 0.5


@dataclass
class Events:
    """A maker of events; times are seconds after START."""

    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def turn(self, session: str, seconds: float, **fields: object) -> Completion:
        session_id = SessionId(session)
        values: dict[str, object] = {
            "inference_id": inference_id(session_id, next(self._numbers)),
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
        about: Completion | str,
        name: str,
        value: bool | float | str | None,
        seconds: float,
        **fields: object,
    ) -> Outcome:
        """Return an outcome; `about` is a turn, or a session's id."""
        subject = about.inference_id if isinstance(about, Completion) else None
        values: dict[str, object] = {
            "outcome_id": OutcomeId(f"outcome-{next(self._numbers):06}"),
            "inference_id": subject,
            "session_id": None if subject else about,
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
        store = open_ready(self.directory / name)
        self.stores.append(store)
        return store

    def scorer(
        self, spec: RewardSpec, batch_records: int = 512, announcer: Announcer | None = None, record_attempts: int = 3
    ) -> Scorer:
        settings = ScoringSettings(tick_s=1e-6, batch_records=batch_records)
        scorer = Scorer(self.log, self.store, spec, settings, self.clock, announcer, record_attempts)
        self.scorers.append(scorer)
        return scorer

    def append(self, *events: Event) -> None:
        self.log.append_blocking(Topic.TURNS, events)

    def rewards(self, store: SqlStore | None = None) -> list[Reward]:
        """Return all rewards in order of emission."""
        with (store or self.store).look() as view:
            return [reward for _, reward in view.rewards.after(NAMESPACE, 0, 1_000_000)]

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


@pytest.fixture(scope="session")
def lab() -> ModuleType:
    """Return this module, for tests that need more than the fixtures."""
    return sys.modules[__name__]


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
    """Return a function that scores events, then moves the clock to `now` seconds after START."""

    def run(spec: RewardSpec, events: Sequence[Event], now: float = 0) -> list[Reward]:
        world.append(*events)
        scorer = world.scorer(spec)
        drain(scorer)
        world.clock.advance_to(at(now))
        drain(scorer)
        return world.rewards()

    return run


def drain(scorer: Scorer) -> None:
    while step(scorer, 0):
        pass
