"""An operator's own outcome with the role `accept` counts as acceptance everywhere, like the shipped ones."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from stepping import step
from watched_world import Users, Watching

from core.reward_spec import RewardSpec, load_reward_spec
from core.settings import IngestSettings
from ingest.writer import Writer
from onward.directory.layout import SHIPPED_REWARDS
from scoring.judge.agreement import ALL, LEAST, agreements
from scoring.monitors import Window, hear, watch
from scoring.monitors.signals import judge_against_outcome, reported_against_verified
from serving.releases.canaries.evidence import RewardEvidence

MERGED = {"type": "boolean", "weight": 0.8, "decides": True, "role": "accept"}


def spec_with(**changes: Any) -> RewardSpec:
    raw = load_reward_spec(SHIPPED_REWARDS).model_dump(exclude_unset=True)
    raw["outcomes"]["merged"] = MERGED | changes
    return RewardSpec.model_validate(raw)


SPEC = spec_with()
UNKNOWN = spec_with(role="none")


@pytest.fixture
def watching(world: Any, lab: ModuleType) -> Iterator[Watching]:
    watching = Watching(world, lab)
    yield watching
    for watcher in watching.watchers:
        watcher.close()


@pytest.mark.parametrize(("spec", "alarms"), [(SPEC, [("reported_against_verified", "opened")]), (UNKNOWN, [])])
def test_monitors_see_it_believed_in_vain(
    world: Any, lab: ModuleType, watching: Watching, spec: RewardSpec, alarms: list[tuple[str, str]]
) -> None:
    users = Users(world, lab, taken="merged")
    watching.start(spec=spec)
    users.work(70, lies=0.7)
    users.wait(20)
    assert watching.look() == alarms


def test_a_reference_that_was_kept_before_the_spec_had_it_counts_it_too(
    world: Any, lab: ModuleType, watching: Watching
) -> None:
    """A hundred turns were wrongly accepted before, and the hundred since are compared with them."""
    users = Users(world, lab, taken="merged")
    watching.start(spec=UNKNOWN)
    users.work(130)
    users.wait(20)
    assert watching.look() == []
    watcher = watching.start(spec=SPEC)
    watching.look(watcher)
    (workload,) = (each for key, each in watcher._workloads.items() if key[1] == "write")
    assert all(turn.roles["merged"] == "accept" for turn in workload.window(ripe=True).reference)


def test_the_judge_is_held_against_it(events: Any) -> None:
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "judgement", 0.25, 2, source="judge"), events.outcome(turn, "merged", True, 3)]
    found = agreements([said] * LEAST, "judgement", SPEC.roles)
    assert [(each.against, each.pairs) for each in found] == [(ALL, LEAST), ("merged", LEAST)]
    assert agreements([said] * LEAST, "judgement", UNKNOWN.roles) == []


def test_a_pleased_judge_is_seen_by_it(events: Any) -> None:
    def turns(judgement: float, roles: Any) -> list[Any]:
        made = []
        for number in range(100):
            turn = events.turn(f"s{number % 20}", number, user_id=f"u{number % 20}")
            said = (events.outcome(turn, "merged", number % 40 < 20, number),)
            said += (events.outcome(turn, "judgement", judgement, number, source="judge"),)
            watched = watch(turn, SPEC.derived)
            for outcome in said:
                watched = hear(watched, outcome, roles)
            made.append(watched)
        return made

    pleased = judge_against_outcome(Window.of(turns(1.0, SPEC.roles), turns(0.5, SPEC.roles)))
    assert pleased is not None
    assert pleased.trips
    assert judge_against_outcome(Window.of(turns(1.0, UNKNOWN.roles), turns(0.5, UNKNOWN.roles))) is None


def test_turned_down_and_merged_contradict_each_other(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "merged", True, 1), events.outcome(turn, "rejected", True, 2)]
    assert "; contradicting: merged and rejected" in lab.score(SPEC, log)[-1].why
    assert "contradicting" not in lab.score(UNKNOWN, log)[-1].why


def test_a_share_that_was_taken_takes_its_place(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "merged", True, 1), events.outcome(turn, "partially_accepted", 0.5, 2)]
    assert lab.score(SPEC, log)[-1].value == pytest.approx(0.5)
    assert lab.score(UNKNOWN, log)[-1].value == pytest.approx(1.0)


def test_a_show_threshold_pays_for_it(lab: ModuleType, events: Any) -> None:
    raw = SPEC.model_dump(exclude_unset=True) | {"suggestion": {"show_threshold": 0.25}}
    turn = events.turn("s", 0, purpose="suggestion")
    log = [turn, events.outcome(turn, "merged", True, 1)]
    assert lab.score(RewardSpec.model_validate(raw), log)[-1].value == pytest.approx(0.75)


def test_a_canarys_evidence_and_the_consoles_curves_have_its_rewards(
    world: Any, run: Any, lab: ModuleType, events: Any
) -> None:
    turns = [events.turn(f"s{number}", number, user_id=f"u{number}") for number in range(4)]
    said = [events.outcome(turn, "merged", place < 2, 10 + place) for place, turn in enumerate(turns)]
    run(SPEC, [*turns, *said], now=100)
    writer = Writer(world.log, world.store, IngestSettings(), world.clock)
    while step(writer):
        pass
    writer.close()
    evidence = RewardEvidence(maturity_s=1.0)
    for turn in turns:
        evidence.turn(turn.inference_id, turn.user_id, "canary", turn.received_at.timestamp())
    for reward in world.rewards():
        evidence.reward(reward.inference_id, reward.value)
    evidence.ripen(lab.at(100).timestamp())
    assert (evidence.arm("canary").turns, evidence.arm("canary").mean) == (4, pytest.approx(0.4))
    with world.store.look() as view:
        drawn = view.curves.worth(lab.NAMESPACE, 100)
    assert sorted((each.value, each.components) for each in drawn) == [
        (0.0, {"merged": 0.0}), (0.0, {"merged": 0.0}), (0.8, {"merged": 0.8}), (0.8, {"merged": 0.8}),
    ]  # fmt: skip


def test_monitors_of_one_turn_name_what_was_said(events: Any) -> None:
    turn = events.turn("s", 0)
    heard = hear(watch(turn, SPEC.derived), events.outcome(turn, "merged", True, 1), SPEC.roles)
    assert (heard.told, heard.roles) == ({"merged": 1.0}, {"merged": "accept"})
    taken_back = events.withdrawal(events.outcome(turn, "merged", True, 1), 2)
    assert hear(heard, taken_back, SPEC.roles).roles == {}
    assert reported_against_verified(Window.of([heard] * 3)) is None
