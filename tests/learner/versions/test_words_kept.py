"""What words taught is made again to the bit: the teacher is in checkpoints, and no words train twice."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from logged_world import World, logged_past, make_reward, manifests, settle

from core.events import Completion, Hint, Reward
from core.ids import OutcomeId, base_ref
from learner.model.sharded_files import stored_tensors
from learner.sequences.kept_out import SuiteSolutions
from learner.updates.kept import _TEACHER
from learner.versions.journal import Entry

MakeWorld = Callable[[str], World]
TOLD = {
    "words.weight": 2.0,
    "words.proof": 0.0,
    "words.teacher_decay": 0.8,
    "admission.max_divergence": 1e9,
    "admission.min_ess": 0.0,
}
AT_ONCE = {**TOLD, "checkpoints.every_s": 0.0}
Past = list[tuple[Completion, Reward]]


def told(past: Past) -> Past:
    return [(turn, with_words(turn, reward)) for turn, reward in past]


def with_words(turn: Completion, reward: Reward) -> Reward:
    said = Hint(start=0, end=9, text="use sum instead", outcome_id=OutcomeId(f"said-{turn.inference_id}"))
    return msgspec.structs.replace(reward, hints=(said,))


def digest(world: World, version: int) -> str:
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return policy.digest


def test_a_learner_that_was_killed_goes_on_with_its_teacher(make_world: MakeWorld) -> None:
    killed, straight = make_world("a"), make_world("b")
    learner, other = killed.learner(settings=AT_ONCE), straight.learner(settings=TOLD)
    for seed in range(3):
        for world, one in ((killed, learner), (straight, other)):
            world.tell(*told(logged_past(8, seed=seed)))
            settle(one)
    learner.base._checkpointing.wait()
    learner._held.close()  # as if it were killed
    assert any(name.startswith(_TEACHER) for name in stored_tensors(newest_checkpoint(killed)))
    again = killed.learner(settings=TOLD)
    for world, one in ((killed, again), (straight, other)):
        world.tell(*told(logged_past(8, seed=3)))
        settle(one)
        one.close()
    assert digest(killed, 5) == digest(straight, 5)
    assert any(record.words == "trained" for record in manifests(killed)[-1].turns)


def newest_checkpoint(world: World) -> Path:
    return max((world.directory / "learner").glob("checkpoint-*[0-9]"))


def test_versions_with_words_are_made_again_from_their_manifests(make_world: MakeWorld) -> None:
    """Without any checkpoint: words that began to train in the middle, and the teacher that began with them."""
    world = make_world("a")
    for seed, settings in ((0, {}), (1, TOLD), (2, TOLD)):
        learner = world.learner(settings={**TOLD, "words.weight": 0.0, **settings})
        world.tell(*told(logged_past(8, seed=seed)))
        settle(learner)
        learner.base._checkpointing.wait()  # one that is being written would be in the next learner's way
        learner._held.close()
        for path in (world.directory / "learner").glob("checkpoint-*"):
            shutil.rmtree(path)
    again = world.learner(settings=TOLD)
    assert again.newest == base_ref(4)
    world.tell(*told(logged_past(8, seed=3)))
    settle(again)
    again.close()
    assert not any(made.afresh for made in manifests(world)), "it came out the same, to the bit"
    assert [record.words for record in manifests(world)[0].turns] == [None] * 8


def test_a_correction_does_not_say_the_same_words_again(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=TOLD)
    past = told(logged_past(8))
    world.tell(*past)
    settle(learner)
    revised = [(turn, with_words(turn, make_reward(turn, -1.0, revision=1, after_s=30))) for turn, _ in past]
    world.tell(*revised)
    settle(learner)
    learner.close()
    first, second = manifests(world)
    assert any(record.words is not None for record in first.turns)
    assert [record.words for record in second.turns] == [None] * 8


def test_of_words_that_do_not_train_nothing_is_kept(make_world: MakeWorld) -> None:
    """Neither in manifests nor in the journal; once they are switched off, not of those either that waited then."""
    world, kept = make_world("a"), list[list[bool]]()
    for number, settings in enumerate((TOLD, {**TOLD, "words.namespaces": ("other",)}, {})):
        before = {made.version for made in manifests(world)}
        world.tell(*told(logged_past(8 * number + 12)[8 * number :]))
        learner = world.learner(settings={**settings, "batch.max_wait_s": 1e9})
        settle(learner)
        entries = [entry for entry in learner.base._journal.newest_first() if isinstance(entry, Entry)]
        learner.close()
        new = [entry for entry in entries if entry.version not in before]
        assert any(entry.pending for entry in new)
        kept.append([bool(each.hints) for entry in new for each in (*entry.pending, *entry.manifest.rewards)])
    assert [set(each) for each in kept] == [{True}, {False}, {False}]


def test_words_that_hold_an_eval_cases_solution_do_not_teach(make_world: MakeWorld) -> None:
    world = make_world("a")
    solution = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result"
    suites = [SuiteSolutions("own", "aa", {"sum of a list": solution})]
    learner = world.learner(suites, settings=TOLD)
    (turn, reward), *others = told(logged_past(8))
    said = msgspec.structs.replace(reward.hints[0], text=f"no, like this:\n{solution}")
    world.tell((turn, msgspec.structs.replace(reward, hints=(said,))), *others, *logged_past(2, seed=5))
    settle(learner)
    learner.close()
    [made] = manifests(world)
    assert made.drops == {"eval_solution": (turn.inference_id,)}
    assert not any("result" in hint.text for each in made.rewards for hint in each.hints)
