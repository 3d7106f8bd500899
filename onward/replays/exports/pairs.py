"""Pairs of answers to one request, of which the first is to be preferred.

An edit makes a pair: what the user kept, against what was sampled. So do answers of different rewards to the same
request, which is the same prompt to the token, in one namespace and workload: choices of one request, an answer that
was asked for again, or what others were answered. There the best is put against the worst, the second best against the
second worst, and so on, so that a request which everybody makes has no more than half as many pairs as answers. The
same answer given again has one place among them, with the mean of its rewards."""

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from core.events import Completion
from core.ids import InferenceId
from onward.replays.exports.answers import Answer, sampled_answer
from onward.replays.exports.columns import Row
from onward.replays.exports.rows import Maker, tools_text
from onward.replays.selection.known import KnownTurn

ALONE: Final = "alone"
"""Why a turn is in no pair: nobody had another answer to its request."""
NO_BETTER: Final = "no_better"
"""Why one is in none: no other answer's reward differs by more than the margin, or those that do had their pair."""
REPEATED: Final = "repeated"
"""Why one is in none: an earlier turn gave the same answer, and stands for it."""


@dataclass(frozen=True)
class Pair:
    """Turns by their ids; `chosen` is the same one as `rejected` where a user edited it."""

    chosen: InferenceId
    rejected: InferenceId
    chosen_reward: float | None = None
    rejected_reward: float | None = None


@dataclass
class _Given:
    """One answer to a request: the turns that gave it, by their ids in order, and their rewards."""

    turns: list[InferenceId] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    @property
    def first(self) -> InferenceId:
        return self.turns[0]

    @property
    def reward(self) -> float:
        return statistics.fmean(self.rewards)


class Requests:
    """All answers by request: of each answer its digest, ids and rewards, so that a large past fits into memory."""

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._answers: defaultdict[bytes, defaultdict[bytes, _Given]] = defaultdict(lambda: defaultdict(_Given))
        self._edited: list[Pair] = []

    def add(self, known: KnownTurn, *, is_edited: bool) -> None:
        """Add a turn; they come in the order of their ids."""
        turn, reward = known.turn, known.reward
        assert reward is not None, "a turn without a reward is not admitted"
        request = _digest(turn.namespace, turn.workload, turn.prompt_token_ids)
        given = self._answers[request][_digest(turn.token_ids)]
        given.turns.append(turn.inference_id)
        given.rewards.append(reward.value)
        if is_edited:
            self._edited.append(Pair(turn.inference_id, turn.inference_id, rejected_reward=reward.value))

    def pairs(self) -> list[Pair]:
        """Return all pairs, in the order of the ids of those rejected, then chosen."""
        found = [pair for given in self._answers.values() for pair in self._of_request(list(given.values()))]
        return sorted([*self._edited, *found], key=lambda pair: (pair.rejected, pair.chosen))

    def unpaired(self, pairs: Sequence[Pair]) -> Counter[str]:
        """Return how many turns are in no pair, by reason."""
        paired = {name for pair in pairs for name in (pair.chosen, pair.rejected)}
        counts = Counter[str]()
        for given in self._answers.values():
            for each in given.values():
                why = ALONE if len(given) == 1 else NO_BETTER
                left = [name for name in each.turns if name not in paired]
                counts.update(why if name == each.first else REPEATED for name in left)
        return counts

    def _of_request(self, given: list[_Given]) -> Iterator[Pair]:
        order = sorted(given, key=lambda each: (-each.reward, each.first))
        for best, worst in zip(order[: len(order) // 2], reversed(order), strict=False):
            if best.reward - worst.reward > self._margin:
                yield Pair(best.first, worst.first, best.reward, worst.reward)


def pair_row(pair: Pair, chosen: KnownTurn, rejected: KnownTurn, maker: Maker) -> Row:
    kept = maker.kept(chosen) if chosen.inference_id == rejected.inference_id else None
    better, worse = kept or sampled_answer(chosen.turn), sampled_answer(rejected.turn)
    won, lost = pair.chosen_reward, pair.rejected_reward
    return {
        "prompt": maker.prompt(rejected.turn),
        "chosen": maker.said(chosen.turn, better),
        "rejected": maker.said(rejected.turn, worse),
        "tools": tools_text(rejected.turn),
        "source": _source(chosen.turn, rejected.turn),
        "margin": None if won is None or lost is None else won - lost,
        "chosen_reward": won,
        "rejected_reward": lost,
        "chosen_inference_id": chosen.inference_id,
        "rejected_inference_id": rejected.inference_id,
        "prompt_token_ids": list(rejected.turn.prompt_token_ids),
        **_side("chosen", better),
        **_side("rejected", worse),
        "namespace": rejected.turn.namespace,
        "workload": rejected.turn.workload,
    }


def _side(name: str, answer: Answer) -> Row:
    return {f"{name}_token_ids": list(answer.token_ids), f"{name}_logprobs": list(answer.logprobs)}


def _source(chosen: Completion, rejected: Completion) -> str:
    if chosen.inference_id == rejected.inference_id:
        return "edit"
    if chosen.group_id == rejected.group_id:
        return "choices"
    return "regenerated" if chosen.session_id == rejected.session_id else "same_request"


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()
