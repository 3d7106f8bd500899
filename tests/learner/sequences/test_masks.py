"""Turns that were sampled under masks train under the same masks, or are left out by name."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from changed_settings import changed
from constrained_world import GRAMMAR, SCHEMA, constrained_turns
from logged_world import MODEL, World, make_reward, make_turn, manifests, settle

from core.events import Completion, Grammar
from core.grammars import masks as grammar_masks
from core.grammars import sets
from core.ids import InferenceId, UserHash
from core.settings import LearnerSettings
from learner.model.policy_model import PolicyModel
from learner.poison_rewards import try_to_pack
from learner.sequences import masks as learner_masks
from learner.sequences.joining import merge
from learner.sequences.masks import GRAMMAR_BUDGET, MasksOfTurns, RationedMasks
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.state import make_state
from learner.updates.update import update

KINDS: dict[str, dict[str, Any]] = {
    "grammar": {},
    "grammar at 0.7": {"temperature": 0.7},
    "grammar and top-p": {"top_p": 0.8},
    "top-p": {"grammar": None, "top_p": 0.7},
    "top-k and min-p": {"grammar": None, "top_k": 20, "min_p": 0.02, "temperature": 1.3},
}


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return PolicyModel(MODEL, "cpu")


def scored(turn: Completion, value: float = 1.0) -> ScoredTurn:
    return ScoredTurn(turn, make_reward(turn, value))


def parts_of(policy: PolicyModel, batch: list[ScoredTurn], **layout: Any) -> list[MicroBatch]:
    return micro_batches(merge(batch), batch, 4096, "cpu", masks=policy.masks, **layout)


@pytest.mark.parametrize("layout", [{}, {"packed": True}, {"shared": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_learners_logprobs_are_those_served(policy: PolicyModel, kind: str, layout: dict[str, bool]) -> None:
    batch = [scored(turn) for turn in constrained_turns(4, **KINDS[kind])]
    batch.append(scored(make_turn(5)))  # beside one that is free
    for part in parts_of(policy, batch, **layout):
        assert part.mask is not None
        with torch.no_grad():
            logprobs_N, entropy_N = policy.score(policy.hidden_states(part), part)
        apart_N = (logprobs_N - part.behaviour_N).abs()
        masked_N = part.mask.set_N >= 0
        assert masked_N.any()
        coldest = float(part.temperature_N.min())
        # Usually below 8e-6; by how much sums are rounded is the processor's, and who shares a batch with whom.
        assert float(apart_N[masked_N].max()) < 5e-5 / min(1.0, coldest**2)
        assert float(apart_N.max()) < 1e-4
        only_one_N = part.mask.allowed(slice(0, len(masked_N)), slice(0, policy.vocabulary)).sum(1) == 1
        assert not logprobs_N[only_one_N].any()
        assert not entropy_N[only_one_N].any()


def test_without_its_mask_a_turn_would_be_another(policy: PolicyModel) -> None:
    """Otherwise the test above would show nothing."""
    (part,) = parts_of(policy, [scored(turn) for turn in constrained_turns(4)])
    with torch.no_grad():
        logprobs_N, _ = policy.head.score(policy.hidden_states(part), part.targets_N, part.temperature_N)
    assert float((logprobs_N - part.behaviour_N).abs().max()) > 0.5


def test_free_turns_have_no_masks_and_need_no_grammars() -> None:
    batch = [scored(make_turn(number)) for number in range(3)]
    (part,) = micro_batches(merge(batch), batch, 4096, "cpu")
    assert part.mask is None


def other_grammar(turn: Completion, word: str = "bad") -> Completion:
    changed = json.dumps(SCHEMA).replace('"sad"', f'"{word}"')
    grammar = Grammar(text=GRAMMAR.text.replace(json.dumps(SCHEMA), changed))
    return msgspec.structs.replace(turn, sampling=msgspec.structs.replace(turn.sampling, grammar=grammar))


def recorded_otherwise(**changes: Any) -> Callable[[Completion], Completion]:
    def change(turn: Completion) -> Completion:
        assert turn.logprob_space.grammar is not None
        recorded = msgspec.structs.replace(turn.logprob_space.grammar, **changes)
        return msgspec.structs.replace(
            turn, logprob_space=msgspec.structs.replace(turn.logprob_space, grammar=recorded)
        )

    return change


def without_record(turn: Completion) -> Completion:
    return msgspec.structs.replace(turn, logprob_space=msgspec.structs.replace(turn.logprob_space, grammar=None))


def other_token(turn: Completion) -> Completion:
    return msgspec.structs.replace(turn, token_ids=(*turn.token_ids[:-2], 77, turn.token_ids[-1]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_grammar, "other_masks"),
        (other_token, "other_masks"),
        (recorded_otherwise(digest="0" * 32), "other_masks"),
        (recorded_otherwise(vocabulary=511), "other_masks"),
        (recorded_otherwise(stop_token_ids=(2,)), "other_masks"),
        (recorded_otherwise(version="1.0.0"), "other_grammar_library"),
        (recorded_otherwise(library="xgrammar"), "other_grammar_library"),
        (without_record, "other_grammar_library"),
    ],
)
def test_a_wrong_mask_is_caught(change: Callable[[Completion], Completion], reason: str) -> None:
    turn = constrained_turns(4)[0]
    masks = MasksOfTurns(MODEL)
    assert masks.refusal(turn) is None
    assert masks.refusal(change(turn)) == reason


def test_a_library_that_makes_other_masks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, masks = constrained_turns(4)[0], MasksOfTurns(MODEL)
    plain = grammar_masks.Masks.next

    def wider(self: grammar_masks.Masks) -> grammar_masks.Words:
        found = plain(self).copy()
        found[3] |= 1 << 5  # one id more, far from what was sampled
        self._mask = found
        return found

    monkeypatch.setattr(grammar_masks.Masks, "next", wider)
    assert masks.refusal(turn) == "other_masks"


def test_new_grammars_have_a_share_of_the_learners_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key that sends another schema with each turn, for users whom it makes up, has a tenth; others have theirs."""
    now_s, compiled = 1000.0, list[str]()
    plain = MasksOfTurns.refusal

    def slow(self: MasksOfTurns, turn: Completion) -> str | None:
        nonlocal now_s
        if not self.is_ready(turn):
            compiled.append(turn.key_id or "")
            now_s += 0.5
        return plain(self, turn)

    monkeypatch.setattr(MasksOfTurns, "refusal", slow)
    first = constrained_turns(4)[0]
    masks = RationedMasks(MasksOfTurns(MODEL), lambda: now_s)

    def said(number: int, user: str | None, key: str) -> str | None:
        grammar = Grammar(text=f"{GRAMMAR.text}// {number} of {key}\n")
        sampling = msgspec.structs.replace(first.sampling, grammar=grammar)
        name = InferenceId(f"{key} {number}")
        return masks.refusal(
            msgspec.structs.replace(
                first, inference_id=name, sampling=sampling, user_id=user and UserHash(user), key_id=key
            )
        )

    def flood(users: int, key: str) -> list[str | None]:
        nonlocal now_s
        answers = []
        for number in range(600):
            answers.append(said(number, f"{key} {number % users}", key))
            now_s += 0.5
        return answers

    for users, key, share in ((1, "one", 0.05), (600, "many", 0.1)):
        began_s = now_s
        answers = flood(users, key)
        assert set(answers) == {None, GRAMMAR_BUDGET}
        saved_s = 60.0 * share + 0.5
        assert compiled.count(key) * 0.5 <= share * (now_s - began_s) + saved_s
        assert compiled.count(key) * 0.5 >= share * (now_s - began_s) - 0.5
        assert said(0, "another", f"beside {key}") is None
        said(601, f"{key} 0", key)
        assert said(602, f"{key} {602 % users}", key) == GRAMMAR_BUDGET
        assert masks.refusal(first) is None
        known = msgspec.structs.replace(constrained_turns(4)[1], user_id=UserHash(f"{key} 0"), key_id=key)
        assert masks.refusal(known) is None, "its grammar costs nothing more"


@pytest.mark.parametrize("wrong", ["", "!", sets.pack([[1, 2]]), None])
def test_sets_that_are_not_those_of_the_tokens_are_caught(wrong: str | None) -> None:
    turn = constrained_turns(4, **KINDS["top-p"])[0]
    masks = MasksOfTurns(MODEL)
    assert masks.refusal(turn) is None
    attachments = {} if wrong is None else {sets.ATTACHMENT: wrong}
    assert masks.refusal(msgspec.structs.replace(turn, attachments=attachments)) == "other_masks"


@pytest.mark.parametrize("kind", KINDS)
def test_equal_masks_are_one(kind: str) -> None:
    for turn in constrained_turns(4, **KINDS[kind]):
        masks = MasksOfTurns(MODEL).of(turn)
        assert masks is not None
        assert len({id(mask) for mask in masks}) == len({mask.tobytes() for mask in masks})


def test_masks_are_made_once_and_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()
    plain = MasksOfTurns._made
    monkeypatch.setattr(MasksOfTurns, "_made", lambda self, turn: made.append(turn.inference_id) or plain(self, turn))
    turns, masks = constrained_turns(4), MasksOfTurns(MODEL)
    batch = [scored(turn) for turn in turns]
    for turn in turns:
        assert masks.refusal(turn) is None
        try_to_pack(scored(turn), masks)
    micro_batches(merge(batch), batch, 4096, "cpu", masks=masks)
    assert made == [turn.inference_id for turn in turns]
    first = masks.of(turns[0])
    assert masks.refusal(other_token(turns[0])) == "other_masks", "a turn of that name, but with other tokens"
    assert first is masks.of(turns[0])
    assert first is not None
    monkeypatch.setattr(learner_masks, "_MOST_BYTES", 2 * len(first) * first[0].nbytes)
    for turn in turns:
        changed = msgspec.structs.replace(turn, inference_id=InferenceId(f"other {turn.inference_id}"))
        masks.of(changed)
    assert 0 < masks._kept_bytes <= learner_masks._MOST_BYTES
    assert masks._kept_bytes == sum(size for _, _, size in masks._kept.values())


def test_a_constrained_turn_trains() -> None:
    """Rewarding one of the values that a schema allows makes it likelier; all else that is learned from is masked."""
    turns = constrained_turns(24)
    glad = [json.loads(turn.text)["mood"] == "glad" for turn in turns]
    assert 2 < sum(glad) < 22
    batch = [scored(turn, 1.0 if is_glad else -1.0) for turn, is_glad in zip(turns, glad, strict=True)]
    settings = changed(LearnerSettings(), {"optimizer.learning_rate": 1e-4, "admission.max_divergence": 10.0})
    state = make_state(MODEL, settings)

    def of_the_glad() -> float:
        (part,) = micro_batches(merge(batch), batch, 10_000, "cpu", masks=state.policy.masks)
        with torch.no_grad():
            logprobs_N, _ = state.policy.score(state.policy.hidden_states(part), part)
        sums_M = torch.zeros(len(batch)).index_add_(0, part.turns_N, logprobs_N)
        return float(sums_M[torch.tensor(glad)].mean() - sums_M[~torch.tensor(glad)].mean())

    before = of_the_glad()
    for _ in range(4):
        result = update(state, batch, settings)
    assert of_the_glad() > before + 0.1
    assert {record.dropped for record in result.records} == {None}


def test_the_learner_counts_what_it_leaves_out(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the time of its clock grammars cost nothing here, as in a replay: the same past leaves the same out."""
    monkeypatch.setattr(learner_masks, "_SHARES", {"user": 1e-9, "key": 1e-9})
    world = make_world("a")
    learner = world.learner()
    good = constrained_turns(11)
    wrong = [other_grammar(good[8]), other_grammar(good[9], "mad"), recorded_otherwise(version="1.0.0")(good[10])]
    turns = [*wrong, *good[:8]]
    world.tell(*[(turn, make_reward(turn, 1.0 if number % 2 else -0.5)) for number, turn in enumerate(turns)])
    settle(learner)
    assert learner.left_out == {"other_masks": 2, "other_grammar_library": 1}
    assert learner.newest is not None
    assert learner.newest.version > 1
    learner.close()


def test_what_a_turn_taught_is_taken_back_whatever_its_grammar_costs(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever has used the time of a key up would keep others' corrections, and an operator's, from the model."""
    world = make_world("a")
    learner = world.learner()
    *turns, another = constrained_turns(9)
    world.tell(*[(turn, make_reward(turn, 1.0 if number % 2 else -0.5)) for number, turn in enumerate(turns)])
    settle(learner)
    monkeypatch.setattr(RationedMasks, "refusal", lambda _masks, _turn: GRAMMAR_BUDGET)
    changes = [(turn, make_reward(turn, -1.0, revision=1)) for turn in turns]
    world.tell((another, make_reward(another, 1.0)), *changes)
    settle(learner)
    assert learner.left_out == {GRAMMAR_BUDGET: 1}
    corrected = [record for made in manifests(world) for record in made.turns if record.applied_revision is not None]
    assert {record.inference_id for record in corrected} == {turn.inference_id for turn in turns}
    learner.close()
