"""An update of settings that this build does not take is left out; it does not stop the learner."""

import json
from collections.abc import Callable

import msgspec
import pytest
from excluded_users import USUAL, came_of, exclude, rounds, teach
from logged_world import World, lineage_of_newest, settle

from core.ids import base_ref
from learner.versions import manifest

MakeWorld = Callable[[str], World]


def test_an_update_of_settings_that_are_none_today_is_left_out(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    teach(world, learner, rounds()[:3])
    path = manifest.path_of(base_ref(3))
    made = manifest.decode(world.blobs.get(path))
    other = json.dumps({**json.loads(made.settings), "momentum_of_1999": 0.5})
    world.blobs.put(path, manifest.encode(msgspec.structs.replace(made, settings=other)))
    number = exclude(world)
    settle(learner)
    learner.close()
    assert [each.again and each.again.version for each in lineage_of_newest(world)] == [None, 4]
    assert (came_of(world, number).made_again, came_of(world, number).lost) == (1, 1)
    assert "version 3 was made with settings that are none today" in caplog.text
