"""Demonstrations: what a user put in the place of an answer's tokens becomes likelier.

    loss = - weight * log pi(token | prompt, what the user left of the answer)     of each demonstrated token

No model sampled these tokens: they have no behaviour log-probabilities, and enter neither importance ratios nor
staleness, divergence, KL or a baseline. A demonstration trains once. When its user revises or withdraws it, what it
taught is taken back with the weight that it had, and the new one trains. Its influence is that of its turn.

Legend: N predicted tokens of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from torch import Tensor

from core.events import Completion, TextEdit
from core.settings import DemonstrationSettings, LearnerSettings
from learner.sequences.extra import ExtraLoss, ExtraPart, ExtraSequence, extra_parts
from learner.sequences.scored import TOO_OLD, DemonstrationRecord, ScoredTurn, TurnRecord
from learner.sequences.tensors import sampled_places

LOSS = "demonstration_loss"


@dataclass(frozen=True)
class Demonstrations:
    """What a batch's edits teach: the records of the turns whose edits are new or were changed, and the loss."""

    records: dict[int, DemonstrationRecord]
    losses: tuple[ExtraLoss, ...]

    def entered(self, records: Sequence[TurnRecord]) -> tuple[TurnRecord, ...]:
        """Return the records of the batch's turns with those of their demonstrations."""
        return tuple(
            replace(record, demonstration=self.records[turn]) if turn in self.records else record
            for turn, record in enumerate(records)
        )


def demonstrated(
    batch: Sequence[ScoredTurn], influence: Sequence[float], settings: LearnerSettings, room: int
) -> Demonstrations:
    """Return what is to train. `influence`: of each turn; `room`: the most tokens that the model reads at once."""
    records, sequences, weights = dict[int, DemonstrationRecord](), list[ExtraSequence](), list[float]()
    for index, (scored, share) in enumerate(zip(batch, influence, strict=True)):
        chosen = _chosen(scored, index, share, settings.demonstrations, room)
        if chosen is not None:
            records[index], found = chosen
            sequences += [sequence for sequence, _ in found]
            weights += [weight for _, weight in found]
    if not sequences:
        return Demonstrations(records, ())
    compute, weights_S = settings.compute, torch.tensor(weights, device=settings.device)

    def likelihood(part: ExtraPart, logprobs_N: Tensor) -> Tensor:
        return -(weights_S[part.sequences_N] * logprobs_N).sum()

    parts = extra_parts(sequences, compute.micro_batch_tokens, settings.device, packed=compute.packed)
    return Demonstrations(records, (ExtraLoss(LOSS, parts, likelihood),))


def _chosen(
    scored: ScoredTurn, index: int, share: float, settings: DemonstrationSettings, room: int
) -> tuple[DemonstrationRecord, list[tuple[ExtraSequence, float]]] | None:
    """Return the record of a turn's edits, and what trains of them with which weight; None where nothing is new."""
    edits, taught = () if scored.reward.void else scored.reward.edits, scored.taught
    if edits == (taught.edits if taught else ()) or (settings.weight == 0 and taught is None):
        return None
    new = demonstration(scored.turn, edits, index)
    dropped = _refusal(scored, new, settings, room) if edits else None
    tokens = 0 if dropped or settings.weight == 0 else len(new.places)
    weight = settings.weight * share * min(1.0, len(sampled_places(scored.turn)) / tokens) if tokens else 0.0
    found = [(new, weight)] if tokens else []
    if taught is not None:
        found.append((demonstration(scored.turn, taught.edits, index), -taught.weight))
    taken_back = len(found[-1][0].places) if taught is not None else 0
    if not (found or dropped):
        return None
    return DemonstrationRecord(tokens=tokens, weight=weight, taken_back=taken_back, dropped=dropped), found


def _refusal(scored: ScoredTurn, new: ExtraSequence, settings: DemonstrationSettings, room: int) -> str | None:
    """Return why a text does not train; what it takes the place of is taken back all the same."""
    if scored.age_s > settings.max_age_s:
        return TOO_OLD
    return "over_context" if len(new.token_ids) > room else None


# ------------------------------------------------------------------------------------------ what edits demonstrate


def demonstration(turn: Completion, edits: Sequence[TextEdit], index: int) -> ExtraSequence:
    """Return what the user's edits demonstrate: their tokens, and after each the one with which the answer goes on.

    Without the latter a deletion would say nothing. Its tokens stand behind those that the user left; what follows the
    last of them is cut off. `index`: of the turn in its batch."""
    answer, places = _woven(turn, edits)
    room, first = len(turn.prompt_token_ids), 0 if turn.prompt_token_ids else 1
    places = [place for place in places if place >= first]
    end = max(places, default=-1) + 1
    return ExtraSequence(
        token_ids=turn.prompt_token_ids + answer[:end],
        places=tuple(room + place for place in places),
        turn=index,
        temperature=turn.logprob_space.temperature,
    )


def _woven(turn: Completion, edits: Sequence[TextEdit]) -> tuple[tuple[int, ...], list[int]]:
    """Return (the answer's tokens with the edits, the places among them that these demonstrate)."""
    sampled = set(sampled_places(turn))
    ids, places, done = list[int](), set[int](), 0
    for edit in edits:
        ids += turn.token_ids[done : edit.start]
        places.update(range(len(ids), len(ids) + len(edit.token_ids)))
        ids += edit.token_ids
        if edit.end in sampled:
            places.add(len(ids))
        done = edit.end
    ids += turn.token_ids[done:]
    return tuple(ids), sorted(place for place in places if place < len(ids))
