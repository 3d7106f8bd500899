"""A small policy serves a stream of users and learns from what they say, by the learner's own update."""

import copy
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch

from bench.feedback_world import ACCEPTED, ANSWER, CONTEXTS, CONTEXTS_EACH, REJECTED, Stream, Users
from bench.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from core.events import Completion, LogprobSpace, Reward, Sampling, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, SessionId, Version
from core.settings import LearnerSettings
from learner.scored import ScoredTurn
from learner.update import update

BATCH = 64
MOST = 2 * BATCH  # turns of an update
_SHARED = {"batch_turns": BATCH, "micro_batch_tokens": 100_000, "kl_coefficient": 0.02}
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Learned:
    """`missed`: of each step, the mean over its turns. `kept`: of each update, the share of its turns that moved the
    policy."""

    missed: list[float]
    kept: list[float]
    policy: SmallPolicy
    users: Users


@dataclass(frozen=True)
class _Served:
    """`missed`: by how much likelier the best answer would have been accepted. `delay`: uniform luck."""

    turn: Completion
    missed: float
    accepted: bool
    delay: float


@dataclass(frozen=True)
class _Due:
    step: float
    scored: ScoredTurn


def settings_for(seed: int, learning_rate: float, **changes: object) -> LearnerSettings:
    return LearnerSettings.model_validate({**_SHARED, "seed": seed, "learning_rate": learning_rate, **changes})


def learn(stream: Stream, settings: LearnerSettings, steps: int, behind: int = 0, *, learns: bool = True) -> Learned:
    """One update a step. Who serves is `behind` updates older than who learns."""
    torch.set_num_threads(1)
    users, state = Users(stream, settings.seed), small_state(settings)
    assert isinstance(state.policy, SmallPolicy)
    recent = deque([copy.deepcopy(state.policy)], maxlen=behind + 1)
    waiting: list[_Due] = []
    missed, kept = [], []
    for step in range(steps):
        if stream.drifts_every and step and step % stream.drifts_every == 0:
            users.drift()
        sessions = _serve(recent[0], users, step, stream)
        missed.append(_mean_missed(sessions))
        waiting += [due for session in sessions for due in _rewarded(session, step, stream)]
        batch = [due.scored for due in waiting if due.step <= step][:MOST]
        taken = {scored.inference_id for scored in batch}
        waiting = [due for due in waiting if due.scored.inference_id not in taken]
        if learns and len(batch) > 1:
            kept.append(update(state, batch, settings).metrics["kept_share"])
        recent.append(copy.deepcopy(state.policy))
    return Learned(missed, kept, state.policy, users)


def still_missed(learned: Learned, batches: int) -> float:
    """By the policy as it has become."""
    return float(np.mean([_mean_missed(_serve(learned.policy, learned.users, -1, Stream())) for _ in range(batches)]))


def _mean_missed(sessions: Sequence[Sequence["_Served"]]) -> float:
    return float(np.mean([served.missed for session in sessions for served in session]))


def _serve(policy: SmallPolicy, users: Users, step: int, stream: Stream) -> list[list[_Served]]:
    asked = users.sessions(BATCH)
    luck = iter(users.luck(BATCH))
    said: list[tuple[int, ...]] = [() for _ in asked]
    sessions: list[list[_Served]] = [[] for _ in asked]
    for index in range(max(map(len, asked))):
        here = [number for number, contexts in enumerate(asked) if index < len(contexts)]
        prompts = [(*said[number], asked[number][index]) for number in here]
        draws = np.stack([next(luck) for _ in here])
        answers = _answers(policy, prompts, draws)
        for number, prompt, draw, (tokens, logprobs) in zip(here, prompts, draws, answers, strict=True):
            likely = users.accepts(prompt[-1], tokens)
            accepted = bool(draw[ANSWER] < likely) != bool(draw[ANSWER + 1] < stream.flipped)
            turn = _completion((step, number, index), prompt, tokens, logprobs)
            sessions[number].append(_Served(turn, users.best(prompt[-1]) - likely, accepted, draw[-1]))
            said[number] = (*prompt, *turn.token_ids)
    return sessions


def _answers(
    policy: SmallPolicy, prompts: Sequence[tuple[int, ...]], draws: np.ndarray
) -> list[tuple[list[int], list[float]]]:
    """(tokens, log-probabilities) of each prompt; tokens count from 0."""
    ids_BW = torch.tensor([(*(EMPTY,) * WINDOW, *prompt)[-WINDOW:] for prompt in prompts])
    tokens, logprobs = [], []
    for place in range(ANSWER):
        logprobs_BA = policy.next_logprobs(ids_BW)
        below_BA = logprobs_BA.exp().cumsum(1)[:, :-1] < torch.tensor(draws[:, place : place + 1])
        token_B = below_BA.sum(1)
        tokens.append(token_B.tolist())
        logprobs.append(logprobs_BA.gather(1, token_B[:, None])[:, 0].tolist())
        ids_BW = torch.cat([ids_BW[:, 1:], CONTEXTS + token_B[:, None]], 1)
    return [(list(t), list(lp)) for t, lp in zip(zip(*tokens, strict=True), zip(*logprobs, strict=True), strict=True)]


def _rewarded(session: Sequence[_Served], step: int, stream: Stream) -> list[_Due]:
    """All of its turns, once the last one's feedback is there, with the mean of what they earned."""
    value = float(np.mean([ACCEPTED if served.accepted else REJECTED for served in session]))
    due = step - stream.delay_steps * math.log1p(-session[-1].delay)
    return [_Due(due, ScoredTurn(served.turn, _reward(served.turn, value))) for served in session]


def _completion(
    place: tuple[int, int, int], prompt: tuple[int, ...], tokens: Sequence[int], logprobs: Sequence[float]
) -> Completion:
    step, number, index = place
    name = f"{step}-{number}"
    return Completion(
        inference_id=InferenceId(f"{name}-{index}"),
        session_id=SessionId(name),
        turn_index=index,
        parent_id=InferenceId(f"{name}-{index - 1}") if index else None,
        group_id=GroupId(f"{name}-{index}"),
        namespace=Namespace("bench"),
        user_id=None,
        workload=str(prompt[-1] // CONTEXTS_EACH),
        purpose="turn",
        received_at=_START,
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=tuple(CONTEXTS + token for token in tokens),
        logprobs=tuple(logprobs),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="small",
        policy_versions=(VersionSpan(start=0, end=len(tokens), version=Version(step + 1)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="stop",
        delivered_tokens=len(tokens),
        latency_ms=0.0,
    )


def _reward(turn: Completion, value: float) -> Reward:
    return Reward(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        workload=turn.workload,
        revision=0,
        value=value,
        components={"accepted": value},
        outcome_ids=(),
        first_outcome_at=_START,
        last_outcome_at=_START,
        why="",
        spec="",
        final=True,
        decided_at=_START,
    )
