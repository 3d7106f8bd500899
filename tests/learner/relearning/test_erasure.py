"""A user is erased: no byte of what he said is left in any file, and the weights are of a run that never had it."""

import json
from collections.abc import Callable

from erased_world import CANARY, eraser_of, files_with, in_own_words, obeyed, order, teach
from excluded_users import USUAL, digest, rounds, trained_on, without
from logged_world import World

from core.ids import base_ref
from ingest.erasure.statement import verified

MakeWorld = Callable[[str], World]


def test_no_byte_is_left_and_the_weights_are_of_a_run_that_never_had_it(make_world: MakeWorld) -> None:
    world, never = make_world("a"), make_world("b")
    past = in_own_words(rounds())
    learner, other = world.learner(settings=USUAL), never.learner(settings=USUAL)
    teach(world, learner, past)
    teach(never, other, without(past, "mallory"))
    assert files_with(world.directory, [CANARY]) == ["log.db", "store.db"], "and hints in manifests, where words teach"
    found = obeyed(world, learner, eraser_of(world), order(world))
    assert found.state == "done"
    assert digest(world, learner.newest) == digest(never, other.newest)
    assert not {each for each in trained_on(world) if each in gone_of(past)}
    for each in (learner, other):
        each.close()
    world.close()
    assert files_with(world.directory, [CANARY]) == []
    statement, _ = verified(found.statement or "")
    assert statement["places"]["weights"]["removed"] == {"versions": 4}
    assert statement["places"]["learner"]["note"] == "learned again without it: version 10"
    assert CANARY not in json.dumps(statement)
    assert not world.blobs.exists("weights/00000006/manifest.json")


def gone_of(past: list[list[object]]) -> set[str]:
    return {turn.inference_id for pairs in past for turn, _ in pairs if turn.user_id == "mallory"}  # type: ignore[misc,has-type,attr-defined]


def test_what_serves_loses_its_weights_once_the_version_made_again_is_live(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner, eraser = world.learner(settings=USUAL), eraser_of(world)
    teach(world, learner, in_own_words(rounds()))
    world.release(6)
    number = order(world)
    waits = obeyed(world, learner, eraser, number)
    assert waits.waits_for == "version 6 learned from it, and serves until the one that was made again is live"
    assert world.weights_of(base_ref(6)), "it must serve"
    world.release(10)
    world.release(6, "retired")
    assert obeyed(world, learner, eraser, number).state == "done"
    learner.close()
