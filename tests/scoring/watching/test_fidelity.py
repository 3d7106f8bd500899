"""A simulation that shows: seen from the log, by workload, and named by what gives it away."""

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
from watched_world import SETTINGS, Watching

from bench.fidelity.sessions import MISMATCHES, SAME, Harness, Side

EPISODES = 30


class Sides:
    """Users and a simulation, whose sessions go into a world's log in turns."""

    def __init__(self, world: Any, lab: ModuleType) -> None:
        self._world, self._lab, self._seconds = world, lab, 0.0
        self._simulation, self._users = (Side(side, random.Random(7)) for side in ("simulated", "production"))  # type: ignore[arg-type]

    def work(self, episodes: int, harness: Harness = SAME) -> None:
        self._simulation.harness = harness
        for side in (self._simulation, self._users) * episodes:
            turns = []
            for turn in side.session():
                self._seconds += 1.0
                turns.append(msgspec.structs.replace(turn, received_at=self._lab.at(self._seconds)))
            self._world.append(*turns)
        self._world.clock.advance_to(self._lab.at(self._seconds))


@pytest.fixture
def watching(world: Any, lab: ModuleType) -> Iterator[Watching]:
    watching = Watching(world, lab)
    yield watching
    for watcher in watching.watchers:
        watcher.close()


def test_a_planted_mismatch_opens_an_alarm_that_says_by_what_it_shows(
    world: Any, lab: ModuleType, watching: Watching
) -> None:
    sides = Sides(world, lab)
    watching.start(SETTINGS.model_copy(update={"window_turns": 300, "reference_turns": 300}))
    sides.work(EPISODES)
    assert watching.look() == []
    sides.work(40, MISMATCHES["lines numbered '12: ' for '12<tab>'"])
    assert watching.look() == [("simulation_shows", "opened")]
    (alarm,) = watching.stored()
    assert alarm.opening.workload == "agent"
    assert alarm.opening.holds == ()
    assert "more often when simulated: result of read: lines begin '9: '" in alarm.opening.figures


def test_a_simulation_alone_shows_nothing(world: Any, lab: ModuleType, watching: Watching) -> None:
    sides = Sides(world, lab)
    sides._users = Side("simulated", random.Random(8), MISMATCHES["a tool named otherwise"])
    watching.start(SETTINGS)
    sides.work(EPISODES)
    assert watching.look() == []
