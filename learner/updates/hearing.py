"""The part of an update in which users' words teach, through a teacher that reads them and scores the sampled tokens.

Like texts, words are taught last, and only of turns that train. What they tell of a turn is computed once, by the
teacher and the policy of that update, and recorded for each token; a revision with other words teaches the
difference."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from core.events import Hint
from core.settings import LearnerSettings
from learner.objective.distillation import bounded, hint_loss, told_by
from learner.sequences.masks import has_masks
from learner.sequences.scored import ScoredTurn, TurnRecord, heard_in
from learner.sequences.tensors import Apart, MicroBatch, sampled_places
from learner.updates.apart import add_gradient, parts_of
from learner.updates.state import LearnerState, computing_in


class HeardWords(NamedTuple):
    """A hint that may teach: the index of its turn, and the places of the tokens that it is about."""

    turn: int
    hint: Hint
    places: tuple[int, ...]


def with_hints(
    state: LearnerState,
    batch: Sequence[ScoredTurn],
    records: Sequence[TurnRecord],
    expected: Sequence[float],
    shares: Sequence[float],
    settings: LearnerSettings,
) -> tuple[TurnRecord, ...]:
    """Return the records of an update, each with what words have told of its turn's tokens by then.

    `expected`: the expected reward of each turn."""
    state.teach_by(settings.objective.hints)
    news = [n for n, record in enumerate(records) if record.dropped is None and _has_news(batch[n])]
    heard = [one for n in news for one in _heard(state, n, batch[n], settings)]
    told = {n: [0.0] * len(batch[n].turn.token_ids) for n in news}
    for one, judged in zip(heard, _judged(state, batch, heard, settings), strict=True):
        verdict = _earned(batch[one.turn], one.places) - expected[one.turn]
        for place, each in zip(one.places, told_by(*judged, verdict, settings.objective.hints), strict=True):
            told[one.turn][place] += each
    return tuple(
        msgspec.structs.replace(record, told=_told(n, batch[n], record, told, min(1.0, shares[n]), settings))
        for n, record in enumerate(records)
    )


def _told(
    number: int,
    scored: ScoredTurn,
    record: TurnRecord,
    told: Mapping[int, Sequence[float]],
    share: float,
    settings: LearnerSettings,
) -> tuple[float, ...]:
    if record.dropped is not None:
        return ()
    if number not in told:
        return scored.applied.told if scored.applied is not None else ()
    found = [share * each for each in bounded(told[number], settings.objective.hints)]
    return tuple(found) if any(found) else ()


def _has_news(scored: ScoredTurn) -> bool:
    """Return whether its words differ from those that were heard before."""
    return heard_in(scored.reward) != (scored.applied.heard if scored.applied is not None else ())


def _heard(state: LearnerState, number: int, scored: ScoredTurn, settings: LearnerSettings) -> list[HeardWords]:
    """Return the hints of a turn that may teach."""
    turn = scored.turn
    if not settings.objective.hints.weight or has_masks(turn) or not scored.reward.hints:
        return []
    hinting, sampled = state.policy.hinting, sampled_places(turn)
    if sampled and sampled[-1] == len(turn.token_ids) - 1 and turn.token_ids[-1] in hinting.stop_token_ids:
        sampled.pop()
    found = []
    for hint in scored.reward.hints:
        places = tuple(place for place in sampled if hint.start <= place < hint.end)
        length = len(hinting.prompt(turn, hint)) + len(turn.token_ids)
        if places and length <= state.policy.context_length and not hinting.quotes(turn, hint):
            found.append(HeardWords(number, hint, places))
    return found


def _judged(
    state: LearnerState, batch: Sequence[ScoredTurn], heard: Sequence[HeardWords], settings: LearnerSettings
) -> list[tuple[list[float], list[float]]]:
    """Return the log-probabilities of each hint's tokens: by the teacher, who reads the hint, and by the policy."""
    if not heard:
        return []
    assert state.teacher is not None, "hints need a teacher"
    prompts = [state.policy.hinting.prompt(batch[one.turn].turn, one.hint) for one in heard]
    with_hint = [_apart(batch, one.turn, prompt, one.places) for one, prompt in zip(heard, prompts, strict=True)]
    own = [_apart(batch, one.turn, batch[one.turn].turn.prompt_token_ids, one.places) for one in heard]
    with state.teacher.in_place_of_policy():
        teacher = _scored(state, with_hint, settings)
    return list(zip(teacher, _scored(state, own, settings), strict=True))


def _apart(batch: Sequence[ScoredTurn], number: int, prompt: Sequence[int], places: Sequence[int]) -> Apart:
    """Return the sequence of a prompt and the turn's answer, up to the last of the places that are scored."""
    turn, start = batch[number].turn, len(prompt)
    whole = (*prompt, *turn.token_ids[: max(places) + 1])
    return Apart(number, whole, tuple(start + place for place in places), turn.logprob_space.temperature)


@torch.no_grad()
def _scored(state: LearnerState, sequences: Sequence[Apart], settings: LearnerSettings) -> list[list[float]]:
    """Return the log-probabilities of each sequence's places, the same in all processes."""
    mine = dict[int, list[float]]()
    for part, rows, counts in parts_of(state, sequences, settings):
        logprobs = state.policy.evaluate(part, computing_in(settings))[1].tolist()
        for row in rows if counts else ():
            mine[row], logprobs = logprobs[: len(sequences[row].places)], logprobs[len(sequences[row].places) :]
    found = {row: values for each in state.ranks.gather(mine) for row, values in each.items()}
    return [found[row] for row in range(len(sequences))]


def _earned(scored: ScoredTurn, places: Sequence[int]) -> float:
    """Return the mean of what the tokens at these places earned."""
    value = dict.fromkeys(places, scored.reward.value)
    for credit in scored.reward.credits:
        value |= {place: credit.value for place in places if credit.start <= place < credit.end}
    return sum(value.values()) / len(value) + scored.follow


def hear(
    state: LearnerState,
    batch: Sequence[ScoredTurn],
    records: Sequence[TurnRecord],
    settings: LearnerSettings,
    num_tokens: int,
) -> dict[str, float]:
    """Add the gradient of what words tell for the first time; return sums for the figures, as `add_gradient` does."""
    lessons = {n: news for n, r in enumerate(records) if r.dropped is None and (news := _news(batch[n], r))}
    if not lessons:
        return {}
    sequences = [_apart(batch, n, batch[n].turn.prompt_token_ids, tuple(news)) for n, news in lessons.items()]

    def loss_of(part: MicroBatch, rows: list[int]) -> tuple[torch.Tensor, float]:
        numbers = [sequences[row].turn for row in rows]
        told = [each for n in numbers for each in lessons[n].values()]
        behaviour = [batch[n].turn.logprobs[place] for n in numbers for place in lessons[n]]
        _, logprobs_N, _ = state.policy.evaluate(part, computing_in(settings))
        behaviour_N, told_N = (torch.tensor(each, device=logprobs_N.device) for each in (behaviour, told))
        loss = hint_loss(logprobs_N, behaviour_N, told_N, settings.objective.correction.ratio_cap).sum()
        return loss, float(told_N.abs().sum())

    return add_gradient(state, sequences, loss_of, ("hint_loss", "told_nats"), settings, num_tokens)


def _news(scored: ScoredTurn, record: TurnRecord) -> dict[int, float]:
    """Return what words newly tell of each token: the difference from what they told before."""
    none = (0.0,) * len(scored.turn.token_ids)
    before = (scored.applied.told if scored.applied is not None else ()) or none
    found = {place: now - then for place, (now, then) in enumerate(zip(record.told or none, before, strict=True))}
    return {place: each for place, each in found.items() if each}
