"""Self-distillation from words: the policy, told what a user said of its answer, teaches the policy that was not told.

On the tokens that the words are about, the teacher says how likely each next token is with the words in the prompt, and
the policy p is drawn towards

    q(v) = p(v) exp(clip(log teacher(v) - log p(v), -most, most)) / Z        loss = KL(sg q || p)

as SDPO (arXiv:2601.20802) and OPSD (arXiv:2601.18734) do it; a follow-up is such words, too (arXiv:2603.12273). What
keeps words from spoiling a policy, each a test in tests/learner/objective/test_words.py:

- The clip: words favour what the policy might have said, and hardly make it say what only they contain.
- The tokens that end an answer keep their probability: words that give away its length do not shorten answers.
- The gate: words that make the answer's own tokens likelier do not train where the reward says that it was bad, nor the
  other way round.
- The proof: they train where heeding them is rewarded (`learner.objective.testimony`).
- They count as much of an update as the user's turns do (`learner.objective.influence`).

Legend: N sampled tokens of a micro-batch, H of them that words are about, K candidates for one, V vocabulary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from core.settings import WordsSettings
from learner.objective.testimony import covariance
from learner.sequences.hinted import Heard, Hinted
from learner.sequences.scored import ScoredTurn, TurnRecord
from learner.sequences.tensors import MicroBatch

_NOTHING = -1e30  # the log-probability of what cannot be said; finite, so that 0 times it is 0
_LEAST = 1e-6  # of the rest: the others' sum may be 1 by rounding

TRAINED, DISAGREES, UNPROVEN, UNUSED_TURN = "trained", "disagrees", "unproven", "turn_unused"


class Knows(Protocol):
    """A policy that says how likely candidates are."""

    stop_ids: tuple[int, ...]

    def candidate_logprobs(self, hidden_ND: Tensor, batch: MicroBatch, tokens_H: Tensor, ids_HK: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Advice:
    """The teacher's advice on the tokens of a turn: candidates, how likely they are, and the sampled token itself."""

    indices: list[int]  # among the turn's output tokens
    ids_HK: Tensor
    logprobs_HK: Tensor
    sampled_H: Tensor


@dataclass
class Told:
    """What a batch's words say, by index of the turn, and what became of them."""

    heard: Heard
    advice: Mapping[int, Advice]
    shares: Sequence[float]  # of each turn's influence
    proven: frozenset[int]  # turns whose namespace's words have proven themselves
    settings: WordsSettings
    readings: Mapping[int, Mapping[int, Tensor]] = field(default_factory=dict)
    """Log-probabilities of a turn's tokens with the words of another turn: by the turn, then by the other."""
    fates: dict[int, str] = field(default_factory=dict)
    heeds: dict[tuple[int, int], float] = field(default_factory=dict)  # (words of, read in): how much likelier
    better: dict[int, float] = field(default_factory=dict)

    def loss(
        self, policy: Knows, part: MicroBatch, hidden_ND: Tensor, logprobs_N: Tensor, better_N: Tensor, keep_N: Tensor
    ) -> Tensor:
        """Return the sum over the micro-batch's tokens. `better_N`: by how much each one's reward was over expectation.

        A turn that does not train by its reward, early or late (`keep_N`), does not train by words. Those of a late one
        do: no importance ratio is taken of them."""
        self._read(part, logprobs_N.detach(), better_N)
        total = hidden_ND.sum() * 0
        for turn in sorted(set(part.turns_N.tolist()) & self.advice.keys()):
            tokens_H = self._tokens(part, turn)
            self.fates[turn] = self._fate(turn, tokens_H, logprobs_N.detach(), better_N, keep_N)
            if self.fates[turn] == TRAINED:
                share = self.settings.weight * min(1.0, self.shares[turn])
                total = total + share * self._distance(policy, part, hidden_ND, turn, tokens_H)
        return total

    def _read(self, part: MicroBatch, logprobs_N: Tensor, better_N: Tensor) -> None:
        most = self.settings.most_nats
        for turn in sorted(set(part.turns_N.tolist()) & self.readings.keys()):
            mine_N = part.turns_N == turn
            self.better[turn] = float(better_N[mine_N].mean())
            for told, read in self.readings[turn].items():
                self.heeds[told, turn] = float((read - logprobs_N[mine_N]).clamp(-most, most).mean())

    def covariances(self, batch: Sequence[ScoredTurn]) -> dict[str, float]:
        """Return, for each namespace with words, the mean covariance of heeding them and of being better."""
        by_words: dict[int, list[int]] = {}
        for told, turn in self.heeds:
            by_words.setdefault(told, []).append(turn)
        found: dict[str, list[float]] = {}
        for told, turns in by_words.items():
            if len(turns) > 1:
                heeds = [self.heeds[told, turn] for turn in turns]
                better = [self.better[turn] for turn in turns]
                found.setdefault(batch[told].turn.namespace, []).append(covariance(heeds, better))
        return {namespace: math.fsum(each) / len(each) for namespace, each in found.items()}

    def _tokens(self, part: MicroBatch, turn: int) -> Tensor:
        wanted = torch.tensor(self.advice[turn].indices, device=part.indices_N.device)
        return ((part.turns_N == turn) & torch.isin(part.indices_N, wanted)).nonzero()[:, 0]

    def _fate(self, turn: int, tokens_H: Tensor, logprobs_N: Tensor, better_N: Tensor, keep_N: Tensor) -> str:
        if not bool(keep_N[tokens_H].any()):
            return UNUSED_TURN
        likelier = float((self.advice[turn].sampled_H - logprobs_N[tokens_H]).mean())
        agrees = likelier * float(better_N[tokens_H].mean()) > 0
        if not agrees:
            return DISAGREES
        return TRAINED if turn in self.proven else UNPROVEN

    def _distance(self, policy: Knows, part: MicroBatch, hidden_ND: Tensor, turn: int, tokens_H: Tensor) -> Tensor:
        advice = self.advice[turn]
        found_HK = policy.candidate_logprobs(hidden_ND, part, tokens_H, advice.ids_HK)
        return pulled(found_HK, advice.logprobs_HK, advice.ids_HK, policy.stop_ids, self.settings.most_nats).sum()

    def marked(self, records: Sequence[TurnRecord]) -> tuple[TurnRecord, ...]:
        """Return the records with what became of each turn's words."""
        fates = {**self.heard.unused, **self.fates}
        return tuple(
            msgspec.structs.replace(record, words=fates[turn]) if turn in fates else record
            for turn, record in enumerate(records)
        )

    def figures(self) -> dict[str, float]:
        fates = [*self.heard.unused.values(), *self.fates.values()]
        return {
            "told_turns": float(len(fates)),
            "words_trained": float(fates.count(TRAINED)),
            "words_disagree": float(fates.count(DISAGREES)),
            "words_unproven": float(fates.count(UNPROVEN)),
            "words_unused": float(sum(fate not in (TRAINED, DISAGREES, UNPROVEN) for fate in fates)),
            "hints_too_long": float(self.heard.left_out),
        }


def pulled(policy_HK: Tensor, teacher_HK: Tensor, ids_HK: Tensor, stop_ids: Sequence[int], most_nats: float) -> Tensor:
    """Return KL(sg q || p) of each token: p and q over the candidates and all the rest as one.

    `policy_HK`, `teacher_HK`: log-probabilities. The candidates hold every token of `stop_ids`, whose share stays."""
    own_HB, told_HB = _with_rest(policy_HK), _with_rest(teacher_HK)
    stops_HB = torch.zeros_like(own_HB, dtype=torch.bool)
    stops_HB[:, :-1] = torch.isin(ids_HK, torch.tensor(stop_ids, device=ids_HK.device, dtype=ids_HK.dtype))
    with torch.no_grad():
        moved_HB = own_HB + (told_HB - own_HB).clamp(-most_nats, most_nats)
        free_H = moved_HB.masked_fill(stops_HB, _NOTHING).logsumexp(1)
        room_H = own_HB.masked_fill(stops_HB, _NOTHING).logsumexp(1)
        q_HB = torch.where(stops_HB, own_HB, moved_HB + (room_H - free_H)[:, None])
    return (q_HB.exp() * (q_HB - own_HB)).sum(1)


def _with_rest(logprobs_HK: Tensor) -> Tensor:
    rest_H = (1 - logprobs_HK.exp().sum(1)).clamp(min=_LEAST)
    return torch.cat([logprobs_HK, rest_H.log()[:, None]], 1)


def hinted_indices(hinted: Hinted, sampled: Sequence[int]) -> list[int]:
    """Return the sampled output tokens that words are about."""
    return [index for index in sampled if any(start <= index < end for start, end in hinted.spans)]
