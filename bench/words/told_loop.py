"""A policy that serves users who tell their taste, and learns from the number of their feedback and from its words."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import torch

from bench.words.told_policy import HIDDEN, ToldPolicy
from bench.words.told_world import ACCEPTED, ANSWER, BEST, LONGEST, REJECTED, REQUESTS, Users, Words
from core.events import Completion, Hint, LogprobSpace, Reward, Sampling, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, UserHash, base_ref
from core.settings import LearnerSettings
from core.settings.names import nested
from learner.objective.advantages import make_advantages
from learner.objective.influence import Influence
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState, make_optimizer
from learner.updates.update import update

BATCH = 32
PEOPLE = 40  # users, each of whom has a turn now and then
EVERY = 4
MEASURED = 400  # answers by which a policy's quality is measured
_START = datetime(2026, 1, 1, tzinfo=UTC)
_SHARED: dict[str, object] = {
    "batch.turns": BATCH,
    "compute.micro_batch_tokens": 100_000,
    "objective.kl.coefficient": 0.02,
    "words.wording": "{words}",
}


@dataclass(frozen=True)
class Run:
    words: Words
    weight: float
    seed: int
    steps: int
    learning_rate: float
    workloads: int
    changes: tuple[tuple[str, object], ...] = ()


def learned(run: Run, policy: ToldPolicy) -> list[float]:
    """Return the quality of the policy before every EVERY-th update, and after the last: 1 is the best there is."""
    torch.set_num_threads(1)
    given = {**_SHARED, "seed": run.seed, "optimizer.learning_rate": run.learning_rate, "words.weight": run.weight}
    settings = LearnerSettings.model_validate(nested({**given, **dict(run.changes)}))
    state, users = _state(policy, settings), Users(run.words, run.seed, run.workloads)
    found = []
    for step in range(run.steps):
        if step % EVERY == 0:
            found.append(quality(state.policy, users, run.seed))
        update(state, _served(state.policy, users, step), settings)  # type: ignore[arg-type]  # a ToldPolicy
    return [*found, quality(state.policy, users, run.seed)]


def quality(policy: object, users: Users, seed: int) -> float:
    """Return how likely the policy's answers are accepted, as a share of what the best ones would be."""
    assert isinstance(policy, ToldPolicy)
    chance = np.random.default_rng((9, seed))
    requests = [number % REQUESTS for number in range(MEASURED)]
    answers = policy.answers([(request, ANSWER) for request in requests], chance.random((MEASURED, LONGEST)))
    liked = [users.accepts(request, tokens) for request, (tokens, _) in zip(requests, answers, strict=True)]
    return float(np.mean(liked)) / BEST


def _state(policy: ToldPolicy, settings: LearnerSettings) -> LearnerState:
    policy = copy.deepcopy(policy)
    torch.manual_seed(settings.seed)
    optimizer = make_optimizer(policy, settings.optimizer)  # type: ignore[arg-type]  # has parameters()
    advantages = make_advantages(settings.advantage, HIDDEN, settings.seed, settings.device)
    anchor = copy.deepcopy(policy)
    influence = Influence(settings.users)
    return LearnerState(policy, anchor, optimizer, advantages, influence=influence)  # type: ignore[arg-type]


def _served(policy: ToldPolicy, users: Users, step: int) -> list[ScoredTurn]:
    requests, luck = users.ask(BATCH), users.luck(BATCH)
    answers = policy.answers([(request, ANSWER) for request in requests], luck)
    batch = []
    for number, (request, (tokens, logprobs)) in enumerate(zip(requests, answers, strict=True)):
        accepted = bool(luck[number, LONGEST] < users.accepts(request, tokens))
        words = users.say(request, accepted, luck[number, LONGEST + 1 :])
        turn = _completion(step * BATCH + number, users.workload(request), (request, ANSWER), tokens, logprobs)
        batch.append(ScoredTurn(turn, _reward(turn, accepted, words)))
    return batch


def _completion(
    number: int, workload: int, prompt: tuple[int, ...], tokens: Sequence[int], logprobs: Sequence[float]
) -> Completion:
    name = str(number)
    return Completion(
        inference_id=InferenceId(name),
        session_id=SessionId(name),
        turn_index=0,
        parent_id=None,
        group_id=GroupId(name),
        namespace=Namespace("bench"),
        user_id=UserHash(str(number % PEOPLE)),
        workload=str(workload),
        purpose="turn",
        received_at=_START + timedelta(seconds=number),
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=tuple(tokens),
        logprobs=tuple(logprobs),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="told",
        policy_versions=(VersionSpan(start=0, end=len(tokens), version=base_ref(1)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="stop",
        delivered_tokens=len(tokens),
        latency_ms=0.0,
    )


def _reward(turn: Completion, accepted: bool, words: str | None) -> Reward:
    value = ACCEPTED if accepted else REJECTED
    told = Hint(start=0, end=len(turn.token_ids), text=words or "", outcome_id=OutcomeId(f"said-{turn.inference_id}"))
    return Reward(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        workload=turn.workload,
        revision=0,
        value=value,
        components={"accepted": value},
        hints=() if words is None else (told,),
        outcome_ids=(),
        first_outcome_at=turn.received_at,
        last_outcome_at=turn.received_at,
        why="",
        spec="",
        final=True,
        decided_at=turn.received_at,
    )
