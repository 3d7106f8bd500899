"""Demonstrations: what users wrote in an answer's place is learned by its likelihood, and by nothing else."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
import torch
from changed_settings import changed
from logged_world import MODEL, World, logged_past, make_reward, make_turn, manifests, settle
from past_batches import DEFAULT, some_batch
from torch import Tensor
from transformers import AutoTokenizer

from core.events import Completion, Reward, Segment, TextEdit
from core.ids import UserHash, base_ref
from learner.batches.backlog import Backlog
from learner.batches.kept_out import SuiteAdmission
from learner.objective.demonstrations import likelihood_loss, weight_of
from learner.sequences.resemblance import KeptOut, SuiteSolutions
from learner.sequences.scored import Applied, ScoredTurn, TurnRecord
from learner.sequences.tensors import apart_batches
from learner.sequences.written import lessons_of, users_text
from learner.updates.state import LearnerState, make_state
from learner.updates.update import UpdateResult, update
from learner.versions.checkpoint import Checkpoints
from learner.versions.manifest import prove_exactly_once
from learner.versions.provenance import applied_on

MakeWorld = Callable[[str], World]
TEACHES = changed(DEFAULT, {"objective.demonstration_weight": 0.5})
WHOLE = {"vocabulary": 10**6, "context_length": 10**6}


def edit(start: int, end: int, *token_ids: int) -> TextEdit:
    return TextEdit(start=start, end=end, token_ids=token_ids)


def edited(scored: ScoredTurn, *edits: TextEdit, revision: int = 0) -> ScoredTurn:
    said = {"edits": edits, "edited_by": UserHash("ada"), "revision": revision}
    return replace(scored, reward=msgspec.structs.replace(scored.reward, **said))


def taught(edits: Sequence[TextEdit], weight: float, reward: Reward | None = None) -> Applied:
    reward = reward or make_reward(make_turn(0), 1.0)
    return Applied(
        revision=0,
        reward=reward.value,
        edits=tuple(edits),
        taught=weight,
        scale=1.0,
        version=base_ref(1),
        received_at=reward.decided_at,
    )


@pytest.mark.parametrize(
    ("edits", "text", "users"),
    [
        ([edit(1, 2, 90)], [10, 90, 12, 13], [1, 2]),
        ([edit(0, 0, 90, 91)], [90, 91, 10, 11, 12, 13], [0, 1, 2]),
        ([edit(1, 3)], [10, 13], [1]),
        ([edit(2, 4)], [10, 11], []),
        ([edit(0, 1, 90), edit(1, 2)], [90, 12, 13], [0, 1]),
        ([edit(0, 1, 90), edit(3, 3, 91)], [90, 11, 12, 91, 13], [0, 1, 3, 4]),
        ([], [10, 11, 12, 13], []),
        ([edit(2, 5, 90)], None, None),
    ],
    ids=["in place", "before all", "left out", "cut off", "side by side", "two", "none", "not of this answer"],
)
def test_which_tokens_are_the_users(edits: list[TextEdit], text: list[int] | None, users: list[int] | None) -> None:
    """What was put in, and what now stands behind something else; the rest stays what the model sampled."""
    turn = msgspec.structs.replace(make_turn(0), token_ids=(10, 11, 12, 13))
    found = users_text(turn, edits)
    assert found == (None if text is None or users is None else (tuple(text), tuple(users)))
    forced = msgspec.structs.replace(turn, segments=(Segment(start=0, end=4, kind="forced"),))
    if found is not None and (then := users_text(forced, edits)) is not None:
        assert [found.token_ids[place] for place in then.places] == [t for e in edits for t in e.token_ids]


def test_a_text_is_taught_once_and_only_what_changed_of_it_again() -> None:
    scored = edited(some_batch(0, 1)[0], edit(1, 2, 90, 91))
    answer, prompt = scored.turn.token_ids, scored.turn.prompt_token_ids

    def lessons(
        weight: float, before: Applied | None, *edits: TextEdit
    ) -> list[tuple[tuple[int, ...], dict[int, float]]]:
        found = lessons_of(3, edited(replace(scored, applied=before), *edits), weight)
        assert {lesson.sequence.turn for lesson in found} <= {3}
        sequences = [lesson.sequence for lesson in found]
        assert all(each.token_ids[: len(prompt)] == prompt for each in sequences)
        places = [[place - len(prompt) for place in each.places] for each in sequences]
        weights = [dict(zip(p, lesson.weights, strict=True)) for p, lesson in zip(places, found, strict=True)]
        return [(each.token_ids[len(prompt) :], w) for each, w in zip(sequences, weights, strict=True)]

    first, other = edit(1, 2, 90, 91), edit(1, 2, 90, 92)
    text = (answer[0], 90, 91, answer[2])
    assert lessons(0.5, None, first) == [(text, {1: 0.5, 2: 0.5, 3: 0.5})]
    assert lessons(0.5, taught([first], 0.5), first) == [], "the same text trains once"
    assert lessons(0.0, taught([first], 0.5)) == [(text, {1: -0.5, 2: -0.5, 3: -0.5})], "withdrawn"
    amended = ((answer[0], 90, 92, answer[2]), {1: -0.25, 2: 0.25, 3: 0.25})
    assert lessons(0.25, taught([first], 0.5), other) == [amended, (text, {2: -0.5, 3: -0.5})], "only the difference"
    assert lessons(0.0, None, first) == []


def test_a_text_weighs_no_more_than_its_answer() -> None:
    (scored,) = some_batch(0, 1)
    tokens = len(scored.turn.token_ids)
    for count in (1, tokens, 10 * tokens):
        long = edited(scored, edit(0, tokens, *([7] * count)))
        weight = weight_of(long, 0.5, 1.0, **WHOLE)
        assert 0 < weight <= 0.5
        assert weight * count <= 0.5 * tokens * (1 + 1e-9)
        assert weight_of(long, 0.5, 0.1, **WHOLE) == pytest.approx(0.1 * weight), "of a user who counts for less"
        assert weight_of(long, 0.5, 2.0, **WHOLE) == weight, "and no more of one who counts for more"
        assert weight_of(long, 0.0, 1.0, **WHOLE) == 0
    short = edited(scored, edit(0, 1, 7))
    assert weight_of(replace(short, applied=taught(short.reward.edits, 0.125)), 0.5, 1.0, **WHOLE) == 0.125
    room = len(scored.turn.prompt_token_ids) + tokens
    assert weight_of(short, 0.5, 1.0, 8, room) == 0, "of words that the model does not have"
    assert weight_of(short, 0.5, 1.0, 10**6, room) > 0
    assert weight_of(short, 0.5, 1.0, 10**6, room - 1) == 0


def test_the_loss_pulls_up_and_takes_back_no_further_than_the_anchor() -> None:
    logprobs_N = torch.tensor([-2.0, -2.0, -2.0], requires_grad=True)
    weight_N, anchor_N = torch.tensor([0.5, -0.5, -0.5]), torch.tensor([-1.0, -3.0, -1.0])
    loss_N = likelihood_loss(logprobs_N, weight_N, anchor_N)
    assert loss_N.tolist() == [1.0, -1.0, 0.0]
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    assert gradient_N.tolist() == [-0.5, 0.5, 0.0]


def likelihood(state: LearnerState, scored: ScoredTurn) -> float:
    (lesson,) = lessons_of(0, replace(scored, applied=None), 1.0)
    ((part, _),) = apart_batches([lesson.sequence], 1024, "cpu")
    with torch.no_grad():
        return float(state.policy.evaluate(part)[1].sum())


def trained(*batches: Sequence[ScoredTurn], teaches: bool = True) -> tuple[LearnerState, list[UpdateResult]]:
    settings = TEACHES if teaches else DEFAULT
    state = make_state(MODEL, settings)
    return state, [update(state, batch, settings) for batch in batches]


def weights(state: LearnerState) -> list[Tensor]:
    return [parameter.detach() for parameter in state.policy.parameters()]


def test_what_nobody_sampled_enters_no_ratio_no_kl_and_no_sample_size() -> None:
    """Of two updates that differ in a user's text alone, all figures of sampled tokens are the same to the bit."""
    batch = some_batch(0, 8)
    told = [edited(batch[0], edit(1, 4, 300, 301, 302)), edited(batch[1], edit(0, 12, 7)), *batch[2:]]
    plain, (without,) = trained(batch)
    state, (found,) = trained(told)
    assert not all(map(torch.equal, weights(plain), weights(state)))
    own = ("demonstration_loss", "taught_tokens", "positions", "gradient_norm")
    sampled = {name: value for name, value in found.metrics.items() if name not in own}
    assert sampled == {name: value for name, value in without.metrics.items() if name not in own}
    assert found.metrics["taught_tokens"] == 3 + 1 + 1
    assert [msgspec.structs.replace(record, taught=0.0) for record in found.records] == list(without.records)
    assert [record.taught for record in found.records] == [0.5, 0.5] + [0.0] * 6
    lessons = [lesson.sequence for n, scored in enumerate(told) for lesson in lessons_of(n, scored, 0.5)]
    ((part, _),) = apart_batches(lessons, 1024, "cpu")
    assert part.behaviour_N.isnan().all(), "whoever makes a ratio of them sees that it is none"
    off, (untaught,) = trained(told, teaches=False)
    assert all(map(torch.equal, weights(plain), weights(off)))
    assert {record.taught for record in untaught.records} == {0.0}


def test_a_text_becomes_likelier_and_what_is_withdrawn_less_so_again() -> None:
    batch = some_batch(0, 8)
    told = edited(batch[0], edit(1, 4, 300, 301, 302))
    state, (first,) = trained([told, *batch[1:]])
    up = likelihood(state, told)
    assert up > likelihood(make_state(MODEL, TEACHES), told) + 0.1
    then = [applied_by(record, each.reward) for record, each in zip(first.records, [told, *batch[1:]], strict=True)]
    gone = [replace(each, applied=before) for each, before in zip(batch, then, strict=True)]
    assert update(state, gone, TEACHES).records[0].taught == 0
    assert likelihood(state, told) < up


def applied_by(record: TurnRecord, reward: Reward) -> Applied:
    return record.applied(reward, base_ref(2), make_turn(0).received_at)


def test_what_trained_with_a_text_is_known_and_corrected(make_world: MakeWorld) -> None:
    """Of four texts one is amended, one withdrawn, one is said again with other words about it, one comes late."""
    world = make_world("a")
    learner = world.learner(settings={"objective.demonstration_weight": 0.5, "users.share_repeats": False})
    past = logged_past(8)
    texts = [edit(0, 2, 300 + number) for number in range(4)]

    def say(number: int, revision: int, *edits: TextEdit) -> tuple[Completion, Reward]:
        turn, reward = past[number]
        said = {"revision": revision, "edits": edits, "edited_by": UserHash("ada") if edits else None}
        return turn, msgspec.structs.replace(reward, **said)

    world.tell(*[say(n, 0, texts[n]) for n in range(3)], *past[3:])
    settle(learner)
    again = [say(0, 1, edit(0, 3, 9)), say(1, 1), say(2, 1, texts[2]), say(3, 1, texts[3])]
    world.tell(*again, *logged_past(3, seed=1))
    settle(learner)
    learner.close()
    first, second = manifests(world)
    assert [record.taught for record in first.turns] == [0.5] * 3 + [0.0] * 5
    assert first.rewards[0].edits == (texts[0],)
    found = {record.inference_id: record for record in second.turns}
    then = [found.get(turn.inference_id) for turn, _ in past[:4]]
    assert [record and (record.taught, record.credit) for record in then] == [(0.5, 0.0), (0.0, 0.0), None, (0.5, 0.0)]
    kept = Checkpoints(world.directory / "learner").of(base_ref(3))
    assert kept is not None
    assert applied_on([base_ref(1), base_ref(2), base_ref(3)], world.blobs) == kept.meta.applied
    stands = [kept.meta.applied[turn.inference_id] for turn, _ in past[:4]]
    assert [(one.edits, one.taught) for one in stands] == [
        ((edit(0, 3, 9),), 0.5),
        ((), 0.0),
        ((texts[2],), 0.5),
        ((texts[3],), 0.5),
    ]
    assert prove_exactly_once([first, second]) == 8 + 6


def test_where_texts_no_longer_teach_what_was_taught_can_still_be_taken_back() -> None:
    (_, reward), *_ = logged_past(1)
    text = (edit(0, 2, 300),)
    told = msgspec.structs.replace(reward, revision=1, edits=text, edited_by=UserHash("ada"))
    backlog = Backlog()
    backlog.resume({reward.inference_id: taught(text, 0.5, reward)})
    assert not backlog.add(told), "it stands as it is"
    assert backlog.add(msgspec.structs.replace(told, revision=2, edits=(), edited_by=None))
    backlog.resume({})
    assert [waiting.edits for waiting in backlog.pending.values()] == [()]
    assert backlog.add(msgspec.structs.replace(told, revision=3))
    assert [(waiting.edits, waiting.edited_by) for waiting in backlog.pending.values()] == [((), None)]
    keeping = Backlog(keeps_texts=True)
    assert keeping.add(told)
    assert [waiting.edits for waiting in keeping.pending.values()] == [text]


@pytest.mark.parametrize("is_within_a_call", [False, True])
def test_a_text_that_resembles_an_eval_solution_is_not_taught(is_within_a_call: bool) -> None:
    """The turn trains without it, and the suite's record has it."""
    solution = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result\n"
    written = json.dumps({"code": solution}) if is_within_a_call else f"Here it is:\n{solution}"
    tokens = AutoTokenizer.from_pretrained(MODEL).encode(written)
    (scored,) = some_batch(0, 1)
    suites = SuiteAdmission(lambda: KeptOut([SuiteSolutions("ours", "d1", {"total": solution})]), MODEL)
    told = edited(scored, edit(0, 12, *tokens))
    assert suites.without_told(told).reward == scored.reward
    assert [each.turns for each in suites.take()] == [1]
    harmless = edited(scored, edit(0, 12, *tokens[:6], 10**15))
    assert suites.without_told(harmless) is harmless
    assert SuiteAdmission(KeptOut, MODEL).without_told(told) is told
