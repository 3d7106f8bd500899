"""A small policy that serves a stream of users and learns from their feedback, by the learner's own update."""

import copy
import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

import numpy as np
import torch

from bench.learning.feedback_world import ACCEPTED, ANSWER, CONTEXTS, CONTEXTS_EACH, REJECTED, WORKLOADS, Stream, Users
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from core.events import Completion, LogprobSpace, Reward, Sampling, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, SessionId, base_ref
from core.settings import LearnerSettings
from core.settings.names import nested
from learner.sequences.scored import ScoredTurn
from learner.updates.state import LearnerState
from learner.updates.update import NonFiniteLoss, UpdateResult, update

BATCH = 64
MOST = 2 * BATCH  # turns of an update
_SHARED = {"batch.turns": BATCH, "compute.micro_batch_tokens": 100_000, "objective.kl.coefficient": 0.02}
STEP_S = 1.5  # from one version to the next
_START = datetime(2026, 1, 1, tzinfo=UTC)
Heard = Callable[[Sequence[ScoredTurn], UpdateResult], None]
Said = Callable[[Users, ScoredTurn], ScoredTurn]


@dataclass(frozen=True)
class Learned:
    """The result of learning; `missed` is, for each step, the mean over its turns."""

    missed: list[float]
    policy: SmallPolicy
    users: Users


@dataclass(frozen=True)
class _Served:
    """A turn that was served.

    `missed` is by how much likelier the best answer would have been accepted, `delay` uniform luck."""

    turn: Completion
    missed: float
    accepted: bool
    delay: float


_Due = tuple[float, ScoredTurn]  # at which step


def settings_for(seed: int, learning_rate: float, changes: Mapping[str, object]) -> LearnerSettings:
    """Return a learner's settings with `changes`, which are given by their paths."""
    given = {**_SHARED, "seed": seed, "optimizer.learning_rate": learning_rate, **changes}
    return LearnerSettings.model_validate(nested(given))


def learn(
    stream: Stream,
    settings: LearnerSettings,
    steps: int,
    behind: int = 0,
    *,
    learns: bool = True,
    heard: Heard | None = None,
    said: Said | None = None,
    begin: Callable[[LearnerSettings], LearnerState] = small_state,
) -> Learned:
    """Serve and learn with one update a step.

    The policy that serves is `behind` updates older than the one that learns. `heard` is called with every update;
    `said` adds to a turn's reward what its user said or wrote; `begin` makes what learns."""
    torch.set_num_threads(1)
    users, state = Users(stream, settings.seed), begin(settings)
    assert isinstance(state.policy, SmallPolicy)
    recent = deque([copy.deepcopy(state.policy)], maxlen=behind + 1)
    waiting: list[tuple[float, int, ScoredTurn]] = []  # a heap; what is due at once, in order
    order = count()
    missed = []
    for step in range(steps):
        if stream.drifts_every and step and step % stream.drifts_every == 0:
            users.drift()
        sessions = _serve(recent[0], users, step, stream)
        missed.append(_mean_missed(sessions))
        for at, scored in (due for session in sessions for due in _rewarded(session, step, stream)):
            heapq.heappush(waiting, (at, next(order), scored if said is None else said(users, scored)))
        batch: list[ScoredTurn] = []
        while waiting and waiting[0][0] <= step and len(batch) < MOST:
            batch.append(heapq.heappop(waiting)[2])
        if learns and len(batch) > 1:
            with suppress(NonFiniteLoss):  # the learner lets the batch go
                result = update(state, batch, settings)
                if heard is not None:
                    heard(batch, result)
        recent.append(copy.deepcopy(state.policy))
    return Learned(missed, state.policy, users)


def still_missed(learned: Learned, batches: int, workloads: Collection[int] = range(WORKLOADS)) -> float:
    """Return what the learned policy misses with requests of these workloads."""
    served = [
        s for _ in range(batches) for session in _serve(learned.policy, learned.users, 0, Stream()) for s in session
    ]
    return float(np.mean([each.missed for each in served if int(each.turn.workload) in workloads]))


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
    """Return (tokens, log-probabilities) of each prompt; tokens count from 0."""
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
    """Reward all turns of a session, once the last one's feedback is there, with the mean of what they earned."""
    value = float(np.mean([ACCEPTED if served.accepted else REJECTED for served in session]))
    at = step - stream.delay_steps * math.log1p(-session[-1].delay)
    if int(session[-1].turn.workload) >= WORKLOADS - stream.late_workloads:
        at += stream.late_steps
    if math.isinf(at):
        return []
    return [(at, ScoredTurn(served.turn, _reward(served.turn, value, at))) for served in session]


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
        received_at=_moment(step),
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=tuple(CONTEXTS + token for token in tokens),
        logprobs=tuple(logprobs),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="small",
        policy_versions=(VersionSpan(start=0, end=len(tokens), version=base_ref(step + 1)),),
        tokenizer_digest="",
        renderer="",
        finish_reason="stop",
        delivered_tokens=len(tokens),
        latency_ms=0.0,
    )


def _reward(turn: Completion, value: float, step: float) -> Reward:
    moment = _moment(step)
    return Reward(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        workload=turn.workload,
        revision=0,
        value=value,
        components={"accepted": value},
        outcome_ids=(),
        first_outcome_at=moment,
        last_outcome_at=moment,
        why="",
        spec="",
        final=True,
        decided_at=moment,
    )


def _moment(step: float) -> datetime:
    return _START + timedelta(seconds=STEP_S * step)
