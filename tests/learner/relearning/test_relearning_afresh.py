"""An optimizer that was begun afresh in vain stands in the manifest of what is learned with it."""

from collections.abc import Callable

import pytest
from excluded_users import USUAL, came_of, exclude, of_user, rounds, teach
from logged_world import World, lineage_of_newest, logged_past, settle

from core.errors import WeightsError
from core.ids import base_ref
from learner.past import Past
from learner.reliving import Reliving, Unlike
from learner.versions.manifest import Manifest, settings_of

MakeWorld = Callable[[str], World]


def test_what_comes_after_a_last_update_that_began_afresh_and_failed_says_so(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world("a")
    first, second = rounds()[:2]
    learner = world.learner(settings=USUAL)
    teach(world, learner, [first])
    learner.close()
    with monkeypatch.context() as patched:
        patched.setattr(Past, "go_to", go_nowhere)
        learner = world.learner(settings=USUAL)
    teach(world, learner, [second])
    assert [made.afresh for made in lineage_of_newest(world)] == [False, True]
    monkeypatch.setattr(Reliving, "live_again", fail_with(Reliving.live_again))
    number = exclude(world)
    settle(learner)
    assert came_of(world, number).lost == 1
    teach(world, learner, [of_user(logged_past(8, seed=seed), {}) for seed in (8, 9)])
    learner.close()
    assert [(made.version.version, made.afresh) for made in lineage_of_newest(world)] == [
        (2, False),
        (4, True),
        (5, False),
    ]


def go_nowhere(*_: object) -> None:
    raise Unlike("it came out otherwise")


def fail_with(again: Callable[[Reliving, Manifest], object]) -> Callable[[Reliving, Manifest], object]:
    """Return it so that version 3's update fails once its optimizer is new: the anchor is loaded after that."""

    def live_again(self: Reliving, made: Manifest) -> object:
        if made.again == base_ref(3):
            self.adopt(made.parent, settings_of(made))
            raise WeightsError("the anchor's weights are gone")
        return again(self, made)

    return live_again
