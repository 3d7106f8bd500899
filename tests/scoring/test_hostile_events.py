"""Hostile, well-formed events through the real writer, scorer, monitors, judge and learner.

They share one real log and store. After each example every stage is alive and has read everything, and feedback on
others' turns counts as if the attacker were not there."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from changed_settings import changed
from hostile_events import sessions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge_world import Endpoint, endpoint_of_our_own, settings_of
from logged_world import World, make_turn, open_world
from stepping import step

from core.events import Completion, Outcome, Topic
from core.ids import InferenceId, OutcomeId
from core.reward_spec import RewardSpec
from core.settings import IngestSettings, MonitorSettings, ScoringSettings
from ingest.writer import Writer
from learner.poison_rewards import try_to_pack
from scoring.judge import Judge
from scoring.stage import Scorer
from scoring.watching import MonitorStage

_NEVER = 10**6  # turns of a batch: the learner reads, and trains at the end


@dataclass
class Stages:
    """All stages that read, in one process, one step after another."""

    world: World
    lab: ModuleType
    endpoint: Endpoint
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        log, store, clock = self.world.log, self.world.store, self.world.clock
        judged = {"type": "number", "weight": 0.0, "minimum": 0, "maximum": 1}
        shown = self.lab.SPEC.model_dump()
        self.spec = RewardSpec.model_validate(shown | {"outcomes": shown["outcomes"] | {"judgement": judged}})
        self.writer = Writer(log, store, IngestSettings(), clock)
        self.scorer = Scorer(log, store, self.spec, ScoringSettings(tick_s=1e-6), clock)
        self.watcher = MonitorStage(log, store, self.spec, MonitorSettings(every_s=1e-6, maturity_s=10), clock)
        self.judge = Judge(
            log, store, self.spec, settings_of(self.endpoint, requests={"votes": 1}, turns={"max_age_s": 1e6}), clock
        )
        self.learner = self.world.learner(
            settings={"batch.turns": _NEVER, "batch.min_turns": _NEVER, "batch.backlog_turns": _NEVER}
        )
        self.all: list[Any] = [self.writer, self.scorer, self.watcher, self.judge, self.learner]

    def run(self) -> None:
        """Run until every stage has read everything and the judge has no judgement left to make."""
        while sum(step(stage, 0) for stage in self.all) or not self.are_done():
            pass

    def are_done(self) -> bool:
        members = (self.writer._turns.member, self.scorer._member)
        readers = (self.watcher._reader, self.learner._reader)
        progress = self.judge._progress
        return (
            not any(sum(member.behind().values()) for member in members)
            and all(reader.position(source) == self.end(source) for reader in readers for source in reader.assignment())
            and progress is not None
            and not self.judge._unsaid
            and all(self.end(source) == at for source, at in progress.reached().items())
        )

    def end(self, source: Any) -> int:
        return self.world.log.end(source)

    def values(self, turns: list[Completion]) -> dict[InferenceId, float]:
        ids = {turn.inference_id for turn in turns}
        with self.world.store.look() as view:
            rewards = [reward for _, reward in view.rewards.after(self.lab.NAMESPACE, 0, 10**9)]
        return self.lab.last_values([reward for reward in rewards if reward.inference_id in ids])

    def close(self) -> None:
        for stage in self.all:
            stage.close()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, lab: ModuleType) -> Iterator[Stages]:
    world = open_world(tmp_path_factory.mktemp("hostile") / "world")
    with endpoint_of_our_own() as endpoint:
        stages = Stages(world, lab, endpoint)
        yield stages
        stages.close()
    world.close()


def honest(lab: ModuleType, number: int, now_s: float) -> list[Any]:
    """Return two users' events: one rejects, the tests of the other's second turn pass."""
    events, make = [], lab.Events()
    turns = [
        make_turn(
            number * 3 + index, session=f"honest-{number}-{min(index, 1)}", received_at=lab.at(now_s), text="done"
        )
        for index in range(3)
    ]
    for turn, (name, value) in zip(
        turns, [("rejected", True), ("accepted", True), ("tests_passed", True)], strict=True
    ):
        about = OutcomeId(f"honest-{turn.inference_id}")
        events += [turn, make.outcome(turn, name, value, now_s, outcome_id=about)]
    return events


def test_nobody_stops_the_others(stages: Stages, lab: ModuleType) -> None:
    everybody: set[InferenceId] = set()

    @settings(max_examples=40, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example])
    @given(st.data())
    def examples(data: st.DataObject) -> None:
        everybody.update(try_one(stages, lab, next(stages.numbers), data))

    examples()
    assert everybody <= set(batch_of(stages)), "all of them are learned from"


def try_one(stages: Stages, lab: ModuleType, number: int, data: st.DataObject) -> list[InferenceId]:
    """Run one example; return the honest users' turns."""
    now_s = 1000.0 * number
    good = honest(lab, number, now_s)
    others = [event.outcome_id for event in good if isinstance(event, Outcome)]
    bad = data.draw(sessions(lab, f"hostile-{number}", others, now_s))
    events = [event for pair in itertools.zip_longest(good, bad) for event in pair if event is not None]
    stages.world.log.append_blocking(Topic.TURNS, events)
    stages.run()
    stages.world.clock.advance_to(lab.at(now_s + 900.0))
    stages.run()
    turns = [event for event in good if isinstance(event, Completion)]
    alone = lab.last_values(lab.score(stages.spec, good, until=lab.at(now_s + 900.0)))
    assert len(alone) == len(turns)
    assert stages.values(turns) == alone
    with stages.world.store.look() as view:
        assert view.turns.get_many(alone) == {turn.inference_id: turn for turn in turns}
    assert all(turn.inference_id in stages.watcher._turns for turn in turns)
    assert alone.keys() <= stages.learner._backlog.pending.keys()
    return list(alone)


def batch_of(stages: Stages) -> list[InferenceId]:
    """Return the turns that the learner would train on after all that it has read."""
    stages.learner._settings = changed(stages.learner._settings, {"batch.min_turns": 2, "batch.max_wait_s": 1e-9})
    stages.world.clock.advance_to(stages.world.clock.now() + timedelta(days=1))
    batch = stages.learner._due_batch()
    for scored in batch:
        try_to_pack(scored)
    return [scored.inference_id for scored in batch]
