"""Demonstrations: what a user put in an answer's place becomes likelier, once, and no more than it may."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
import torch
from changed_settings import changed
from logged_world import MODEL, World, logged_past, make_reward, make_turn, manifests, settle
from past_batches import DEFAULT, some_batch
from torch import Tensor

from core.events import Completion, Reward, TextEdit
from core.ids import UserHash, base_ref
from core.settings import LearnerSettings
from learner.objective.demonstrations import demonstration
from learner.sequences.extra import extra_parts
from learner.sequences.kept_out import SuiteSolutions
from learner.sequences.scored import Applied, DemonstrationRecord, ScoredTurn, Taught, applied_after
from learner.updates.state import LearnerState, make_state
from learner.updates.update import UpdateResult, update
from learner.versions.manifest import as_one, prove_exactly_once
from learner.versions.provenance import applied_on

MakeWorld = Callable[[str], World]
EDITS = (TextEdit(start=2, end=4, token_ids=(60, 61, 62)),)
OTHER = (TextEdit(start=5, end=9, token_ids=(70,)),)
TAUGHT = 4  # tokens of EDITS: three, and the one after them
SETTINGS = changed(DEFAULT, {"users.share_repeats": False})


def weights(state: LearnerState) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in state.policy.parameters()]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def with_edits(scored: ScoredTurn, edits: tuple[TextEdit, ...], **changes: object) -> ScoredTurn:
    return replace(scored, reward=msgspec.structs.replace(scored.reward, edits=edits, **changes))


def a_batch(edits: tuple[TextEdit, ...] = EDITS, **changes: object) -> list[ScoredTurn]:
    """Return eight turns, of which the user of the first left something else."""
    first, *others = some_batch(0, 8)
    return [with_edits(first, edits, **changes), *others]


def learned(batch: Sequence[ScoredTurn], settings: LearnerSettings = SETTINGS) -> tuple[LearnerState, UpdateResult]:
    state = make_state(MODEL, settings)
    return state, update(state, batch, settings)


def likelihood(state: LearnerState, scored: ScoredTurn, edits: tuple[TextEdit, ...] = EDITS) -> float:
    (part,) = extra_parts([demonstration(scored.turn, edits, 0)], 10_000, "cpu")
    with torch.no_grad():
        return float(state.policy.evaluate(part.tokens)[1].sum())


def test_what_the_user_left_becomes_likelier() -> None:
    batch = a_batch()
    before = likelihood(make_state(MODEL, SETTINGS), batch[0])
    with_it, result = learned(batch)
    without, plain = learned(a_batch(()))
    assert result.records[0].demonstration == DemonstrationRecord(tokens=TAUGHT, weight=1.0)
    assert [record.demonstration for record in result.records[1:]] == [None] * 7
    assert likelihood(with_it, batch[0]) > max(before, likelihood(without, batch[0])) + 0.1
    assert result.metrics["demonstration_loss"] > 0
    assert "demonstration_loss" not in plain.metrics


def test_its_tokens_enter_nothing_that_compares_with_what_was_sampled() -> None:
    """All figures, and all records, are those of the batch without edits, but for the gradient and its cost."""
    (_, result), (_, plain) = learned(a_batch()), learned(a_batch(()))
    own = {"gradient_norm", "positions", "demonstration_loss"}
    assert {k: v for k, v in result.metrics.items() if k not in own} == {
        k: v for k, v in plain.metrics.items() if k not in own
    }
    assert [msgspec.structs.replace(record, demonstration=None) for record in result.records] == list(plain.records)


def test_without_weight_edits_change_nothing_bit_for_bit() -> None:
    silent = changed(SETTINGS, {"demonstrations.weight": 0.0})
    (state, result), (plain, _) = learned(a_batch(), silent), learned(a_batch(()))
    assert same(weights(state), weights(plain))
    assert result.records[0].demonstration is None
    assert not same(weights(learned(a_batch())[0]), weights(plain))


def test_the_same_batch_gives_the_same_bits() -> None:
    assert same(weights(learned(a_batch())[0]), weights(learned(a_batch())[0]))


def corrected(first: UpdateResult, batch: Sequence[ScoredTurn], edits: tuple[TextEdit, ...]) -> list[ScoredTurn]:
    """Return the next revision of each turn, that of the first with these edits; what it is worth stays."""
    found = []
    for scored, record in zip(batch, first.records, strict=True):
        applied = applied_after(None, record, scored.reward, base_ref(2), scored.turn.received_at)
        found.append(replace(with_edits(scored, scored.reward.edits, revision=1), applied=applied))
    return [with_edits(found[0], edits), *found[1:]]


def test_a_later_revision_with_the_same_text_does_not_train_it_again() -> None:
    batch = a_batch()
    state, first = learned(batch)
    again = update(state, corrected(first, batch, EDITS), SETTINGS)
    assert again.records[0].demonstration is None
    assert "demonstration_loss" not in again.metrics


def test_a_withdrawn_text_is_taken_back() -> None:
    """Upon the same weights, by the very gradient that taught it; later, it is less likely than where it stands."""
    still = changed(SETTINGS, {"optimizer.learning_rate": 1e-30})
    batch = a_batch()
    state, first = learned(batch, still)
    withdrawn = update(state, corrected(first, batch, ()), still)
    assert withdrawn.records[0].demonstration == DemonstrationRecord(taken_back=TAUGHT)
    assert withdrawn.metrics["demonstration_loss"] == -first.metrics["demonstration_loss"] < 0
    found = []
    for edits in (EDITS, ()):
        state, first = learned(batch)
        update(state, corrected(first, batch, edits), SETTINGS)
        for seed in (1, 2):
            update(state, some_batch(seed, 8), SETTINGS)
        found.append(likelihood(state, batch[0]))
    assert found[1] < found[0] - 1


def test_a_revised_text_takes_the_place_of_the_one_before() -> None:
    batch = a_batch()
    state, first = learned(batch)
    old, new = likelihood(state, batch[0]), likelihood(state, batch[0], OTHER)
    revised = update(state, corrected(first, batch, OTHER), SETTINGS)
    assert revised.records[0].demonstration == DemonstrationRecord(tokens=2, weight=1.0, taken_back=TAUGHT)
    assert likelihood(state, batch[0]) < old
    assert likelihood(state, batch[0], OTHER) > new


def test_a_turn_that_came_about_by_a_fault_is_unlearned_and_teaches_nothing() -> None:
    assert learned(a_batch(void=True, value=0.0))[1].records[0].demonstration is None
    batch = a_batch()
    state, first = learned(batch)
    later = corrected(first, batch, EDITS)
    later[0] = with_edits(later[0], EDITS, void=True, value=0.0)
    assert update(state, later, SETTINGS).records[0].demonstration == DemonstrationRecord(taken_back=TAUGHT)


def test_a_text_to_take_back_does_not_let_answers_train_that_are_all_alike() -> None:
    """Its turn's reward is no reward: beside it the others would all seem good."""
    alike = [replace(each, reward=msgspec.structs.replace(each.reward, value=1.0)) for each in some_batch(0, 8)]
    turn = alike[0].turn
    taught = Applied(
        revision=0,
        reward=0.0,
        scale=1.0,
        version=base_ref(1),
        received_at=turn.received_at,
        is_reward=False,
        taught=Taught(edits=EDITS, weight=1.0),
    )
    void = msgspec.structs.replace(alike[0].reward, value=0.0, revision=1, void=True)
    _, result = learned([ScoredTurn(turn, void, taught), *alike[1:]])
    assert [record.dropped for record in result.records] == ["void"] + ["all_alike"] * 7
    assert result.records[0].demonstration == DemonstrationRecord(taken_back=TAUGHT)


def test_a_text_trains_whose_turn_says_too_little_of_what_is_better() -> None:
    """Rewards that are all alike, or that came too late for importance weights, concern what was sampled alone."""
    alike = [with_edits(each, each.reward.edits, value=1.0) for each in a_batch()]
    for settings, batch, why in (
        (SETTINGS, alike, "all_alike"),
        (changed(SETTINGS, {"admission.default_max_age_s": 1.0}), a_batch(), "too_old"),
    ):
        state, result = learned(batch, settings)
        assert {record.dropped for record in result.records} == {why}
        assert likelihood(state, batch[0]) > likelihood(make_state(MODEL, settings), batch[0])
        record = result.records[0]
        known = applied_after(None, record, batch[0].reward, base_ref(2), batch[0].turn.received_at)
        assert not known.is_reward
        later = replace(with_edits(batch[0], (), revision=1), applied=known)
        assert (later.is_correction, later.taught) == (False, known.taught)
        gone = update(state, [later, *batch[1:]], settings).records[0]
        assert gone.demonstration == DemonstrationRecord(taken_back=TAUGHT)
        assert gone.applied_revision is None
        assert applied_after(known, gone, later.reward, base_ref(3), later.turn.received_at).taught is None
        void = replace(later, reward=msgspec.structs.replace(later.reward, void=True, value=0.0))
        assert update(state, [void, *a_batch(())[1:]], SETTINGS).records[0].dropped == "void"


def test_influence_is_bounded() -> None:
    """One user's texts count no more than their turns, and a long text no more than the whole answer."""
    loud = [
        replace(each, turn=msgspec.structs.replace(each.turn, user_id=UserHash("loud" if n < 6 else f"u{n}")))
        for n, each in enumerate(with_edits(each, EDITS) for each in some_batch(0, 8))
    ]
    settings = changed(DEFAULT, {"users.max_share": 0.25, "users.share_repeats": False})
    records = learned(loud, settings)[1].records
    told = [record.demonstration.weight for record in records if record.demonstration is not None]
    assert sum(told[:6]) == pytest.approx(8 * 2 / 3)
    assert told[0] < 1 < told[7]
    long = (TextEdit(start=0, end=12, token_ids=(60,) * 48),)
    record = learned(a_batch(long))[1].records[0].demonstration
    assert record == DemonstrationRecord(tokens=48, weight=0.25)


def test_what_comes_too_late_or_is_longer_than_the_model_reads_is_recorded() -> None:
    late = changed(SETTINGS, {"demonstrations.max_age_s": 1.0})
    assert learned(a_batch(), late)[1].records[0].demonstration == DemonstrationRecord(dropped="too_old")
    state = make_state(MODEL, SETTINGS)
    long = (TextEdit(start=0, end=12, token_ids=(60,) * state.policy.context_length),)
    batch = a_batch(long)
    assert update(state, batch, SETTINGS).records[0].demonstration == DemonstrationRecord(dropped="over_context")


# ------------------------------------------------------------------------------------------ in the learner


def with_texts(past: list[tuple[Completion, Reward]], *, revision: int = 0) -> list[tuple[Completion, Reward]]:
    """Return the past, in which every other user left another text."""
    return [
        (turn, msgspec.structs.replace(reward, edits=EDITS if n % 2 else (), revision=revision))
        for n, (turn, reward) in enumerate(past)
    ]


def test_what_is_withdrawn_late_is_taken_back_all_the_same() -> None:
    """Another text that comes too late does not train, but is one in place of that before."""
    batch = a_batch()
    state, first = learned(batch)
    late = changed(SETTINGS, {"demonstrations.max_age_s": 1.0})
    for edits, dropped in (((), None), (OTHER, "too_old")):
        later = corrected(first, batch, edits)
        found = update(state, later, late).records[0]
        assert found.demonstration == DemonstrationRecord(taken_back=TAUGHT, dropped=dropped)
        known = applied_after(later[0].applied, found, later[0].reward, base_ref(3), later[0].turn.received_at)
        assert known.taught is None


def test_a_lineage_knows_what_it_was_taught_and_proves_it(make_world: MakeWorld) -> None:
    """After a restart too, and where its manifests are read instead of a checkpoint."""
    world = make_world("a")
    past = logged_past(8)
    for number, told in enumerate((with_texts(past), with_texts(past, revision=1), [])):
        learner = world.learner()
        others = logged_past(8, seed=1 + number)
        if number == 2:  # the first of those that left something takes it back
            turn, reward = past[1]
            told = [(turn, msgspec.structs.replace(make_reward(turn, reward.value, 2, 40.0)))]
            others = others[:7]
        world.tell(*told, *(others if number else []))
        settle(learner)
        learner.close()
    lineage = manifests(world)
    told_of = [[r.demonstration for r in made.turns if r.demonstration is not None] for made in lineage]
    assert [len(each) for each in told_of if each] == [4, 1]
    assert told_of[-1] == [DemonstrationRecord(taken_back=TAUGHT)]
    prove_exactly_once(lineage)
    versions = [base_ref(1), *(made.version for made in lineage)]
    learner = world.learner()
    known = learner.base.backlog.applied
    assert applied_on(versions, world.blobs) == known
    assert sum(applied.taught is not None for applied in known.values()) == 3
    learner.close()
    one = as_one(lineage, base_ref(9), base_ref(1))
    assert sum(record.demonstration is not None for record in one.turns) == 3
    prove_exactly_once([one])
    twice = [
        msgspec.structs.replace(record, demonstration=DemonstrationRecord(tokens=1, weight=1.0))
        for record in lineage[-1].turns
    ]
    with pytest.raises(AssertionError, match="its demonstration before is still taught"):
        prove_exactly_once([*lineage[:-1], msgspec.structs.replace(lineage[-1], turns=tuple(twice))])


def test_versions_count_what_taught_them(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    world.tell(*with_texts(logged_past(8)))
    settle(learner)
    learner.close()
    with world.store.look() as view:
        newest, _ = view.policies.newest(1)[0]
    assert newest.metrics["demonstrations"] == 4.0
    assert math.isfinite(newest.metrics["demonstration_loss"])


def test_a_text_that_recalls_an_eval_case_or_says_what_the_model_cannot_never_trains(make_world: MakeWorld) -> None:
    world = make_world("a")
    solution = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result"
    learner = world.learner([SuiteSolutions("own", "aa", {"sum of a list": solution})])
    told, strange, refused = make_turn(30), make_turn(31), make_turn(32, learn=False)
    written = learner.base._kept_out._tokenizer.encode(f"Here you are:\n{solution}\n", add_special_tokens=False).ids
    texts = {
        told.inference_id: (TextEdit(start=0, end=12, token_ids=tuple(written)),),
        strange.inference_id: (TextEdit(start=0, end=1, token_ids=(10**6,)),),
        refused.inference_id: EDITS,
    }
    rewards = [
        (turn, msgspec.structs.replace(make_reward(turn, 0.5), edits=texts[turn.inference_id]))
        for turn in (told, strange, refused)
    ]
    world.tell(*logged_past(8), *rewards)
    world.tell(*logged_past(16, seed=9))
    settle(learner)
    learner.close()
    drops = {why: ids for made in manifests(world) for why, ids in made.drops.items()}
    assert drops == {
        "eval_solution": (told.inference_id,),
        "bad_edits": (strange.inference_id,),
        "no_consent": (refused.inference_id,),
    }


def test_a_text_that_recalls_an_eval_case_takes_back_the_one_before_it(make_world: MakeWorld) -> None:
    """The verdict that comes with it corrects the one before, too."""
    world = make_world("a")
    solution = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result"
    learner = world.learner([SuiteSolutions("own", "aa", {"sum of a list": solution})])
    (turn, reward), *others = logged_past(8)
    world.tell((turn, msgspec.structs.replace(reward, edits=EDITS)), *others)
    settle(learner)
    written = learner.base._kept_out._tokenizer.encode(f"Here you are:\n{solution}\n", add_special_tokens=False).ids
    recalls = (TextEdit(start=0, end=12, token_ids=tuple(written)),)
    revised = msgspec.structs.replace(make_reward(turn, -reward.value, 1, 30.0), edits=recalls)
    world.tell((turn, revised), *logged_past(7, seed=5))
    settle(learner)
    learner.close()
    made = manifests(world)[-1]
    record = next(each for each in made.turns if each.inference_id == turn.inference_id)
    assert record.demonstration == DemonstrationRecord(taken_back=TAUGHT)
    assert (record.reward, record.dropped, record.applied_revision) == (-reward.value, None, 0)
    assert not any(each.edits for each in made.rewards)
    assert [check.left_out for check in made.suites] == [1]
