"""The regret of users whose tools fail, with the blame on the call that failed and with the blame on its whole turn.

    python -m bench credits [--seeds 0 1 … | --rows]

A session has eight turns of eight calls each. The policy begins with habits that are right, but for one call in each of
some requests: every session has one of these requests, and so one planted bad call. Failures are reported as outcomes
(`call_failed`) that name the call, scored by the product's scorer and learned by the learner's own update; for `whole
turn` the same reports name no call. One report in ten is missing, and of as many calls that were right it is said that
they failed. Regret is the share of turns with a call that is wrong, over the whole run. Pairs share seeds; each way
learns at the rate that suits it best on the other half of the seeds. With `--rows` no seed is run, and all that were
make the rows."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch
from rich.progress import track

from bench.learning.feedback_loop import settings_for
from bench.learning.feedback_world import CHOICES, CONTEXTS
from bench.learning.small_policy import EMPTY, SmallPolicy, small_state
from bench.paired import mean_and_reach
from bench.table import RESULTS, Row, report
from core.events import (
    Completion,
    Event,
    LogprobSpace,
    Outcome,
    Reward,
    Sampling,
    TokenRange,
    ToolCall,
    ToolCallTarget,
    Topic,
    VersionSpan,
)
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, base_ref
from core.ports import Record
from core.reward_spec import RewardSpec
from core.store import SqlStore, open_sqlite
from learner.sequences.scored import ScoredTurn
from learner.updates.update import update
from scoring.ledger.transaction import LedgerTransaction

SEEDS, STEPS = 5, 100
SESSIONS, TURNS, CALLS = 8, 8, 8  # of an update, of a session, of a turn; a call is one token
PLANTED = 6  # requests of which one call is wrong at first
NOISE = 0.1
HABIT = 0.9  # of each call, at least
RATES = (0.006, 0.012)
GOAL = 0.6
WAYS = ("by call", "whole turn")
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "call_failed": {"type": "boolean", "role": "complaint", "weight": -1.0, "wait_s": 60, "default": False}
        }
    }
)
_START: Final = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
_RUNS = RESULTS / "credits_runs.json"
_NAMESPACE = Namespace("bench")


class LongSighted(SmallPolicy):
    """Sees its request behind all its calls."""

    window = CALLS + 1


@dataclass(frozen=True)
class World:
    """What is right in each request [CONTEXTS, CALLS], and what the policy is used to."""

    right: np.ndarray
    habit: np.ndarray

    @staticmethod
    def of(seed: int) -> "World":
        rng = np.random.default_rng((3, seed))
        right = rng.integers(CHOICES, size=(CONTEXTS, CALLS))
        habit = right.copy()
        for context in range(PLANTED):
            place = rng.integers(CALLS)
            habit[context, place] = (right[context, place] + rng.integers(1, CHOICES)) % CHOICES
        return World(right, habit)


@dataclass(frozen=True)
class Run:
    way: str
    seed: int
    rate: float

    @property
    def name(self) -> str:
        return f"{self.way}, seed {self.seed}, rate {self.rate:g}"


def regret(run: Run) -> float:
    """Return the share of turns with a wrong call, over all steps."""
    return float(np.mean(wrong_turns(run)))


def wrong_turns(run: Run) -> list[float]:
    """Return the share of turns with a wrong call, of each step."""
    torch.set_num_threads(1)
    world, rng = World.of(run.seed), np.random.default_rng((4, run.seed))
    settings = settings_for(run.seed, run.rate, {"advantage.baseline": "value"})
    policy = LongSighted(run.seed)
    _get_used_to(policy, world.habit)
    state = small_state(settings, policy)
    store, wrong = open_sqlite(Path(":memory:")), []
    for step in range(STEPS):
        asked = [_requests(rng) for _ in range(SESSIONS)]
        luck = rng.random((SESSIONS * TURNS, CALLS, 2))
        turns, chosen = _serve(policy, np.concatenate(asked), luck[..., 0], step)
        is_wrong = chosen != world.right[np.concatenate(asked)]
        wrong.append(float(is_wrong.any(1).mean()))
        failed = is_wrong ^ (luck[..., 1] < NOISE)
        rewards = _scored(store, turns, failed, step, by_call=run.way == "by call")
        update(state, [ScoredTurn(turn, rewards[turn.inference_id]) for turn in turns], settings)
    store.close()
    return wrong


def _get_used_to(policy: SmallPolicy, habit: np.ndarray) -> None:
    """Teach the policy its habits, until it follows each at least so often."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    ids = torch.tensor([[*(EMPTY,) * (LongSighted.window - 1), context] for context in range(CONTEXTS)])
    wanted = torch.tensor(habit)
    likely = 0.0
    while likely < HABIT:
        window, loss, chances = ids, torch.zeros(()), []
        for place in range(CALLS):
            logits = torch.nn.functional.linear(policy._hidden(window)[:, -1], policy._head.weight)
            loss = loss + torch.nn.functional.cross_entropy(logits, wanted[:, place])
            chances.append(logits.softmax(-1).gather(1, wanted[:, place : place + 1]).mean().item())
            window = torch.cat([window[:, 1:], CONTEXTS + wanted[:, place : place + 1]], 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        likely = min(chances)


def _requests(rng: np.random.Generator) -> np.ndarray:
    """Return the requests of a session: one of those with a planted call, among others."""
    requests = rng.integers(PLANTED, CONTEXTS, TURNS)
    requests[rng.integers(TURNS)] = rng.integers(PLANTED)
    return requests


def _serve(
    policy: SmallPolicy, requests: np.ndarray, luck: np.ndarray, step: int
) -> tuple[list[Completion], np.ndarray]:
    """Return the turns, and the choices of each [turns, CALLS]."""
    window = torch.tensor([[*(EMPTY,) * (LongSighted.window - 1), int(request)] for request in requests])
    chosen, logprobs = [], []
    for place in range(CALLS):
        logprobs_BA = policy.next_logprobs(window)
        below_BA = logprobs_BA.exp().cumsum(1)[:, :-1] < torch.tensor(luck[:, place : place + 1])
        token_B1 = below_BA.sum(1, keepdim=True)
        chosen.append(token_B1[:, 0])
        logprobs.append(logprobs_BA.gather(1, token_B1)[:, 0])
        window = torch.cat([window[:, 1:], CONTEXTS + token_B1], 1)
    chosen_BC, logprobs_BC = torch.stack(chosen, 1), torch.stack(logprobs, 1)
    rows = zip(requests, chosen_BC.tolist(), logprobs_BC.tolist(), strict=True)
    turns = [_turn(step, number, int(request), tokens, said) for number, (request, tokens, said) in enumerate(rows)]
    return turns, chosen_BC.numpy()


def _turn(step: int, number: int, request: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Completion:
    session, name = f"{step}-{number // TURNS}", f"{step}-{number}"
    return Completion(
        inference_id=InferenceId(name),
        session_id=SessionId(session),
        turn_index=number % TURNS,
        parent_id=None,
        group_id=GroupId(name),
        namespace=_NAMESPACE,
        user_id=None,
        workload="tools",
        purpose="turn",
        received_at=_at(step),
        messages=({"role": "user", "content": str(request)},),
        tools=({"type": "function", "function": {"name": "call"}},),
        sampling=Sampling(),
        prompt_token_ids=(request,),
        token_ids=tuple(CONTEXTS + token for token in tokens),
        logprobs=tuple(logprobs),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="small",
        policy_versions=(VersionSpan(start=0, end=CALLS, version=base_ref(step + 1)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="tool_calls",
        tool_calls=tuple(
            ToolCall(
                id=f"{name}-{place}",
                name="call",
                arguments="{}",
                index=place,
                token_range=TokenRange(start=place, end=place + 1),
            )
            for place in range(CALLS)
        ),
        delivered_tokens=CALLS,
        latency_ms=0.0,
    )


def _scored(
    store: SqlStore, turns: Sequence[Completion], failed: np.ndarray, step: int, *, by_call: bool
) -> dict[InferenceId, Reward]:
    """Return what the scorer makes of the failures, once all waits are over."""
    said = [
        _outcome(turn, call, by_call=by_call)
        for turn, failures in zip(turns, failed, strict=True)
        for call, has_failed in zip(turn.tool_calls, failures, strict=True)
        if has_failed
    ]
    events: list[Event] = [*turns, *said]
    records = [
        Record(topic=Topic.TURNS, partition=0, offset=offset, appended_at=_START, raw=b"", event=event)
        for offset, event in enumerate(events, step * 10_000)
    ]
    taken, passed = LedgerTransaction(SPEC), LedgerTransaction(SPEC)
    with store.work() as work:
        taken.take(work, records)
    with store.work() as work:
        passed.let_pass(work, {0: _at(step) + timedelta(seconds=61)})
    return {reward.inference_id: reward for reward in (*taken.rewards, *passed.rewards)}


def _outcome(turn: Completion, call: ToolCall, *, by_call: bool) -> Outcome:
    outcome = Outcome(
        outcome_id=OutcomeId(call.id),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=_NAMESPACE,
        name="call_failed",
        value=True,
        target_call=ToolCallTarget(tool_call_id=call.id),
        observed_at=turn.received_at,
        received_at=turn.received_at + timedelta(seconds=1),
    )
    return outcome if by_call else msgspec.structs.replace(outcome, target_call=None)


def _at(step: int) -> datetime:
    return _START + timedelta(seconds=100 * step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(SEEDS)))
    parser.add_argument("--rows", action="store_true")
    asked = parser.parse_args()
    runs = [Run(way, seed, rate) for seed in asked.seeds for rate in RATES for way in WAYS]
    for run in () if asked.rows else track(runs, "runs"):
        _keep(run, regret(run))
    found = _kept()
    seeds = [seed for seed in range(SEEDS) if all(Run(w, seed, r).name in found for w in WAYS for r in RATES)]
    report("credits", list(rows(found, seeds)))


def _kept() -> dict[str, float]:
    return dict(json.loads(_RUNS.read_text())) if _RUNS.exists() else {}


def _keep(run: Run, value: float) -> None:
    """Write a run beside those that were made before, or meanwhile."""
    _RUNS.write_text(json.dumps({**_kept(), run.name: round(value, 5)}, indent=1, sort_keys=True) + "\n")


def rows(found: dict[str, float], seeds: Sequence[int]) -> Iterator[Row]:
    """Compare the ways, each at the rate that suits it best on the other half of the seeds."""
    by_way = {way: _suited(found, way, seeds) for way in WAYS}
    for way in WAYS:
        mean, reach = mean_and_reach(by_way[way])
        yield Row(f"{way}: regret a turn ± {reach:.4f}, {len(seeds)} seeds", mean, "share of turns")
    yield _ratio("regret by call, of that by whole turn", by_way["by call"], by_way["whole turn"], goal=GOAL)
    for rate in RATES:
        ours, theirs = ([found[Run(way, seed, rate).name] for seed in seeds] for way in WAYS)
        yield _ratio(f"the same, both at rate {rate:g}", ours, theirs, goal=None)


def _ratio(metric: str, ours: Sequence[float], theirs: Sequence[float], goal: float | None) -> Row:
    """Compare by the upper end of the paired ratios' interval."""
    mean, reach = mean_and_reach([one / other for one, other in zip(ours, theirs, strict=True)])
    against = f"whole turn, paired by seed: {mean - reach:.3f} to {mean + reach:.3f}"
    if goal is None:
        return Row(metric, mean, "ratio", against)
    return Row.at_most(metric, mean, "ratio", against, mean + reach, goal)


def _suited(found: dict[str, float], way: str, seeds: Sequence[int]) -> list[float]:
    suited = []
    for seed in seeds:
        others = [other for other in seeds if other % 2 != seed % 2] or [seed]
        best = min(RATES, key=lambda rate: sum(found[Run(way, other, rate).name] for other in others))
        suited.append(found[Run(way, seed, best).name])
    return suited


if __name__ == "__main__":
    main()
