"""Summaries against truncation, on tasks of three times the context, as a small policy learns them.

    python -m bench summaries [--seeds 5]

A task is a stream of words that is one, two or three contexts long. In its first context stands one word that matters,
among others that say nothing; at the end its answer is asked for, which is another word (the next of eight): who writes
the answer into a summary has lost the word. A context holds the task, one word of summary and nine words of the stream.

- *truncation*: the model is asked at the end, and sees what the context still holds of the stream's end;
- *summaries*: where a context is full, the model writes one word, with which the next context begins; each summary is a
  turn of the session, and all turns have the reward of its end (SUPO, arXiv 2510.06727);
- *summaries without a share*: the same, but only the last turn is rewarded.

All three learn with as many turns that are rewarded, of the same mixture of lengths, by the product's update
(`learner.updates.update`); nothing is learned beforehand. Measured: the share of right answers to 4,000 tasks of three
contexts, sampled at temperature 1. By luck it is one in eight."""

import argparse
import copy
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import torch
from onward_kernels import token_logprobs_and_entropy
from rich.progress import track
from torch import Tensor, nn

from bench.environments.summary_rows import report_beside
from bench.learning.feedback_loop import settings_for
from bench.paired import interval
from bench.small_turns import small_reward, small_turn
from bench.table import Row
from core.events import Completion, Purpose
from core.settings import LearnerSettings
from learner.objective.advantages import make_advantages
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch
from learner.updates.state import LearnerState, make_optimizer
from learner.updates.update import update

WORDS = 8  # that can be said, and one of which is to be kept
EMPTY, TASK, SUMMARISE, ASK, *SAY_NOTHING = range(WORDS, WORDS + 8)
IDS = WORDS + 8
STREAM = 9  # words of a context
CONTEXTS = 3  # of the longest tasks
EMBEDDING, HIDDEN = 32, 64
SESSIONS, UPDATES, RATE = 48, 2500, 0.005
MEASURED = 4000
SEEDS = 5
WAYS = ("truncation", "summaries", "summaries without a share")
_START = datetime(2026, 1, 1, tzinfo=UTC)


class SetPolicy:
    """A policy in the learner's own terms: the next word by which words stand in the context, and which is the last.

    Legend: B sequences, T positions, N sampled tokens, E embedding, D hidden size, A words."""

    hidden_size = HIDDEN
    masks = None

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._embed = nn.Embedding(IDS, EMBEDDING)
            self._mix = nn.Linear(2 * EMBEDDING, HIDDEN)
            self._head = nn.Linear(HIDDEN, WORDS, bias=False)
            nn.init.normal_(self._head.weight, std=0.02)  # nearly uniform

    def hidden_states(self, batch: MicroBatch) -> Tensor:
        return self._hidden(batch.ids_BT)[batch.rows_N, batch.places_N]

    def _hidden(self, ids_BT: Tensor) -> Tensor:
        words_BTE = self._embed(ids_BT)
        return nn.functional.gelu(self._mix(torch.cat([words_BTE.cumsum(1), words_BTE], 2)))

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND = self.hidden_states(batch)
        return hidden_ND, *self.score(hidden_ND, batch)

    def score(self, hidden_ND: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return token_logprobs_and_entropy(hidden_ND, self._head.weight, batch.targets_N, batch.temperature_N)

    def parameters(self) -> list[nn.Parameter]:
        return [each for part in (self._embed, self._mix, self._head) for each in part.parameters()]

    @torch.no_grad()
    def next_logprobs(self, ids_BT: Tensor) -> Tensor:
        """Return [B, A] for the words after the last position."""
        return nn.functional.linear(self._hidden(ids_BT)[:, -1], self._head.weight).log_softmax(-1)


@dataclass(frozen=True)
class Said:
    """One turn of each session: its prompts, the word that was said, and its log-probability."""

    prompts: np.ndarray  # [session, position]
    words: np.ndarray
    logprobs: np.ndarray
    purpose: Purpose


class World:
    """Draws tasks, and lets a policy work on them in one of the ways."""

    def __init__(self, way: str, seed: int) -> None:
        self._summarises = way != "truncation"
        self._rng = np.random.default_rng((22, seed))

    def work(self, policy: SetPolicy, sessions: int, contexts: int) -> tuple[list[Said], np.ndarray]:
        """Return the turns of so many sessions on tasks of so many contexts, and whether each answer was right."""
        stream = self._rng.choice(SAY_NOTHING, (sessions, contexts * STREAM))
        kept = self._rng.integers(0, WORDS, sessions)
        stream[np.arange(sessions), self._rng.integers(0, STREAM, sessions)] = kept
        summary, turns = np.full(sessions, EMPTY), list[Said]()
        for number in range(contexts):
            is_last = number == contexts - 1
            if not is_last and not self._summarises:
                continue
            part = stream[:, number * STREAM : (number + 1) * STREAM]
            turn = self._say(policy, part, summary, "turn" if is_last else "summary")
            turns.append(turn)
            summary = turn.words
        return turns, turns[-1].words == (kept + 1) % WORDS

    def _say(self, policy: SetPolicy, part: np.ndarray, summary: np.ndarray, purpose: Purpose) -> Said:
        task, asked = np.full(len(part), TASK), np.full(len(part), ASK if purpose == "turn" else SUMMARISE)
        prompts = np.column_stack([task, summary, part, asked])
        logprobs_BA = policy.next_logprobs(torch.from_numpy(prompts)).numpy()
        luck = self._rng.random((len(part), 1))
        words = np.minimum((np.exp(logprobs_BA).cumsum(1) < luck).sum(1), WORDS - 1)
        return Said(prompts, words, logprobs_BA[np.arange(len(part)), words], purpose)


def learned(way: str, seed: int) -> SetPolicy:
    """Return what a policy has become by as many updates, each of as many rewarded turns."""
    torch.set_num_threads(1)
    settings = settings_for(seed, RATE, {"batch.turns": SESSIONS})
    state, world = _state(settings), World(way, seed)
    for step in range(UPDATES):
        batch: list[ScoredTurn] = []
        while len(batch) < SESSIONS:
            for contexts in range(1, CONTEXTS + 1):
                turns, right = world.work(state.policy, SESSIONS // 6, contexts)  # type: ignore[arg-type]
                batch += _scored(turns, right, f"{step}-{len(batch)}", way, contexts)
        update(state, batch, settings)
    assert isinstance(state.policy, SetPolicy)
    return state.policy


def _state(settings: LearnerSettings) -> LearnerState:
    policy = SetPolicy(settings.seed)
    optimizer = make_optimizer(policy, settings.optimizer)  # type: ignore[arg-type]  # has parameters()
    advantages = make_advantages(settings.advantage, HIDDEN, settings.seed, settings.device)
    return LearnerState(policy, copy.deepcopy(policy), optimizer, advantages)  # type: ignore[arg-type]


def _scored(turns: Sequence[Said], right: np.ndarray, name: str, way: str, contexts: int) -> Iterator[ScoredTurn]:
    """Yield the rewarded turns: all of a session have the reward of its end, or the last alone has."""
    for place, turn in enumerate(turns):
        if turn.purpose == "summary" and way == "summaries without a share":
            continue
        for session, is_right in enumerate(right):
            told = _completion(turn, session, f"{name}-{session}", place, contexts)
            yield ScoredTurn(told, small_reward(told, float(is_right), "solved", _START + timedelta(seconds=1)))


def _completion(said: Said, session: int, name: str, place: int, contexts: int) -> Completion:
    return small_turn(
        name,
        place,
        workload=f"{contexts} contexts",
        at=_START,
        prompt=tuple(said.prompts[session].tolist()),
        tokens=(int(said.words[session]),),
        logprobs=(float(said.logprobs[session]),),
        purpose=said.purpose,
    )


def run(job: tuple[str, int]) -> float:
    way, seed = job
    _, right = World(way, 1000 + seed).work(learned(way, seed), MEASURED, CONTEXTS)
    return float(right.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args().seeds
    jobs = [(way, seed) for seed in range(seeds) for way in WAYS]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = dict(zip(jobs, track(pool.imap(run, jobs), "runs", total=len(jobs)), strict=True))
    report_beside(rows({way: np.array([found[way, seed] for seed in range(seeds)]) for way in WAYS}))


def rows(right: dict[str, np.ndarray]) -> list[Row]:
    made = [Row(f"right answers at 3 contexts, {way}", float(each.mean()), "") for way, each in right.items()]
    for way in ("truncation", "summaries without a share"):
        low, high = interval(right["summaries"] - right[way])
        made.append(Row(f"least gain of summaries over {way} (95%)", low, "", way, low, 0.0, bool(low > 0)))
        made.append(Row(f"greatest gain of summaries over {way} (95%)", high, ""))
    return made


if __name__ == "__main__":
    main()
