"""A small policy that serves users and learns by the learner's own update, whose rewards are corrected later."""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
import numpy as np
import torch

from bench.late.survival_world import Known, SurvivalUsers
from bench.learning.feedback_world import ACCEPTED, ANSWER, CONTEXTS, CONTEXTS_EACH, REJECTED
from bench.learning.small_policy import EMPTY, WINDOW, SmallPolicy, small_state
from bench.small_turns import small_reward, small_turn
from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef, base_ref
from core.settings import LearnerSettings
from learner.sequences.scored import Applied, ScoredTurn
from learner.updates.update import NonFiniteLoss, UpdateResult, update

BATCH = 32
MOST = 2 * BATCH  # turns of an update: revisions come beside the first rewards
STEP_S = 60.0  # from one version to the next
_START = datetime(2026, 1, 1, tzinfo=UTC)
_Due = tuple[float, Completion, Reward]  # at which step


def learn(known: Known, settings: LearnerSettings, steps: int) -> list[float]:
    """Serve and learn with one update a step; return what each step's turns missed, in the mean."""
    torch.set_num_threads(1)
    users, state = SurvivalUsers(settings.seed), small_state(settings)
    assert isinstance(state.policy, SmallPolicy)
    sampling = np.random.default_rng((3, settings.seed))
    waiting: list[tuple[float, int, Completion, Reward]] = []  # a heap; what is due at once, in order
    applied: dict[InferenceId, Applied] = {}
    order = count()
    missed: list[float] = []
    for step in range(steps):
        asked = [session[0] for session in users.sessions(BATCH)]
        answers, logprobs = sample(state.policy, asked, sampling.random((BATCH, ANSWER)))
        accepted, lasts = users.verdicts(asked, answers)
        missed.append(float(np.mean([users.missed[c, *answer] for c, answer in zip(asked, answers, strict=True)])))
        version = base_ref(step + 1)
        for place, context in enumerate(asked):
            turn = completion((step, place), context, answers[place], logprobs[place], version)
            for at, _, told in rewards(turn, step, bool(accepted[place]), bool(lasts[place]), known):
                heapq.heappush(waiting, (at, next(order), turn, told))
        batch: list[ScoredTurn] = []
        while waiting and waiting[0][0] <= step and len(batch) < MOST:
            _, _, turn, told = heapq.heappop(waiting)
            batch.append(ScoredTurn(turn, told, applied.pop(turn.inference_id, None)))
        if len(batch) > 1:
            with suppress(NonFiniteLoss):  # the learner lets the batch go
                applied |= entered(batch, update(state, batch, settings), version)
    return missed


def sample(
    policy: SmallPolicy, asked: Sequence[int], draws: np.ndarray
) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]]:
    """Return the answers, whose tokens count from 0, and their tokens' log-probabilities. `draws`: [B, ANSWER]."""
    ids_BW = torch.tensor([(*(EMPTY,) * (WINDOW - 1), context) for context in asked])
    tokens, logprobs = [], []
    for place in range(ANSWER):
        logprobs_BA = policy.next_logprobs(ids_BW)
        token_B = (logprobs_BA.exp().cumsum(1)[:, :-1] < torch.tensor(draws[:, place : place + 1])).sum(1)
        tokens.append(token_B.tolist())
        logprobs.append(logprobs_BA.gather(1, token_B[:, None])[:, 0].tolist())
        ids_BW = torch.cat([ids_BW[:, 1:], CONTEXTS + token_B[:, None]], 1)
    return list(zip(*tokens, strict=True)), list(zip(*logprobs, strict=True))


def rewards(turn: Completion, step: int, accepted: bool, lasts: bool, known: Known) -> Iterator[_Due]:
    """Yield what a turn earns, and when: by the verdict, and again when an accepted answer is found not to last."""
    early, late = (
        None if steps is None else (step + steps, ACCEPTED if good else REJECTED)
        for steps, good in ((known.verdict_steps, accepted), (known.survival_steps, accepted and lasts))
    )
    if early is not None:
        yield early[0], turn, reward(turn, early[1], early[0], 0)
    if late is not None and (early is None or early[1] != late[1]):
        yield late[0], turn, reward(turn, late[1], late[0], 0 if early is None else 1)


def entered(batch: Sequence[ScoredTurn], result: UpdateResult, version: PolicyRef) -> dict[InferenceId, Applied]:
    """Return what an update applied, as the learner's backlog keeps it for corrections."""
    return {
        scored.inference_id: Applied(
            revision=record.revision,
            reward=record.reward,
            scale=record.scale,
            version=version,
            received_at=scored.turn.received_at,
        )
        for scored, record in zip(batch, result.records, strict=True)
        if record.dropped is None and record.revision == 0
    }


def completion(
    place: tuple[int, int], context: int, tokens: Sequence[int], logprobs: Sequence[float], version: PolicyRef
) -> Completion:
    step, number = place
    return small_turn(
        f"{step}-{number}",
        0,
        workload=str(context // CONTEXTS_EACH),
        at=moment(step),
        prompt=(context,),
        tokens=tuple(CONTEXTS + token for token in tokens),
        logprobs=tuple(logprobs),
        version=version.version,
    )


def reward(turn: Completion, value: float, step: float, revision: int) -> Reward:
    made = small_reward(turn, value, "survived" if revision else "accepted", moment(step))
    return msgspec.structs.replace(made, revision=revision)


def moment(step: float) -> datetime:
    return _START + timedelta(seconds=STEP_S * step)
