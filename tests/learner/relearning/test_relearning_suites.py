"""What a version says that it was compared with is still true of it once others' turns were unlearned."""

from collections.abc import Callable

from excluded_users import USUAL, exclude, rounds, teach
from logged_world import World, lineage_of_newest, settle

from learner.sequences.kept_out import SuiteSolutions

MakeWorld = Callable[[str], World]


def test_updates_made_again_were_compared_with_the_suites_of_then(make_world: MakeWorld) -> None:
    world = make_world("a")
    suite = SuiteSolutions("tiny", "aa", {"a case": "def nobody_ever_wrote_this(): return 1"})
    learner = world.learner(settings=USUAL, suites=(suite,))
    teach(world, learner, rounds()[:3])
    before = [check.compared for made in lineage_of_newest(world) for check in made.suites]
    exclude(world)
    settle(learner)
    learner.close()
    after = [check.compared for made in lineage_of_newest(world) for check in made.suites]
    assert (before, after) == ([8, 8, 8], [8, 6, 8])
