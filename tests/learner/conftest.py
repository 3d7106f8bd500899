"""Fixtures: worlds for a learner."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logged_world import World, open_world

MakeWorld = Callable[[str], World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(name: str = "world") -> World:
        made.append(open_world(tmp_path / name))
        return made[-1]

    yield make
    for world in made:
        world.close()
