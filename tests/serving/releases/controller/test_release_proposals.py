"""Versions that were made and judged offline: their verdicts decide what becomes of them."""

from collections.abc import Callable
from typing import Literal

import pytest
from memory_engine import FINE
from release_world import ReleaseWorld

from core.events import GateVerdict

MakeWorld = Callable[..., ReleaseWorld]


def verdict(action: Literal["refuse", "hold", "pass"]) -> GateVerdict:
    return GateVerdict(action=action, why=f"cases: {action}", figures={"cases_low": -0.1})


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    return start_world()


def test_one_that_was_refused_goes_no_further(world: ReleaseWorld) -> None:
    refused = world.publish(verdict=verdict("refuse"))
    world.run()
    assert world.states() == {1: "live", refused: "rejected"}
    assert world.why(refused) == "cases: refuse"
    assert world.engine.loads == []
    assert world.order("promote", refused)
    world.run()
    assert world.check_one_lives() == 1


def test_one_that_is_held_waits_for_a_person_while_others_go_on(world: ReleaseWorld) -> None:
    held = world.publish(verdict=verdict("hold"))
    world.run()
    assert world.states() == {1: "live", held: "candidate"}
    other = world.release()
    assert world.states() == {1: "retired", held: "candidate", other: "live"}, "nobody's newer one ends its wait"
    world.carry_out("promote", held, "looked at by eye")
    assert world.check_one_lives() == held


def test_one_that_passed_goes_before_what_the_learner_made_meanwhile(world: ReleaseWorld) -> None:
    proposed = world.publish(verdict=verdict("pass"))
    learned = world.publish(1)
    world.run()
    assert world.states() == {1: "retired", proposed: "live", learned: "superseded"}
    assert world.why(learned) == f"does not descend from version {proposed}, which was proposed"
    child = world.release(parent=proposed)
    assert world.check_one_lives() == child


def test_it_passes_the_sanity_gate_like_any_other(world: ReleaseWorld) -> None:
    world.engine.figures[2] = {**FINE, "finite": 0.0}
    proposed = world.publish(verdict=verdict("pass"))
    world.run()
    assert world.states()[proposed] == "rejected"
    assert world.why(proposed) == "its outputs are not finite"
