"""The learner's update against a raw torch step that computes the same loss, KL forward included, on the same tensors.

    python -m bench learner_step

The floor is what one would write by hand: the stock model with its head, log_softmax, the loss, a value head, AdamW.
It is given finished tensors and judges, records and counts nothing. Ours starts from scored turns. Before anything is
timed, both take one step from the same weights and must agree on the loss and on the norm of the gradient.

Legend: B sequences, T positions, N sampled tokens, V vocabulary, D hidden size, M turns.
"""

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import stdev
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from bench.table import Row, interleave, report
from core.events import Completion, LogprobSpace, Reward, Sampling, VersionSpan
from core.ids import GroupId, Namespace, OutcomeId, SessionId, base_ref, new_inference_id
from core.settings import AdmissionSettings, LearnerSettings
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.state import make_state
from learner.updates.update import update

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = LearnerSettings(admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0))  # both train on every turn
TURNS = 64
ROUNDS = 31
GOAL = 1.05
AGREEMENT = 1e-4  # relative


def make_batch(seed: int) -> list[ScoredTurn]:
    """Return 64 turns in sessions of one (`write`) or four (`fix`), of the lengths that the demo has."""
    rng = random.Random(seed)
    batch: list[ScoredTurn] = []
    while len(batch) < TURNS:
        turns = min(rng.choice((1, 4)), TURNS - len(batch))
        session, tokens = SessionId(f"session-{len(batch)}"), random_ids(rng, 30)
        for index in range(turns):
            answer = random_ids(rng, 26 if turns == 1 else 11)
            batch.append(scored(session, index, tokens, answer, rng.choice((1.0, 0.25, -0.5)), rng))
            tokens += answer + random_ids(rng, 9)
    return batch


def random_ids(rng: random.Random, mean: int) -> tuple[int, ...]:
    return tuple(rng.randrange(512) for _ in range(rng.randint(mean // 2, mean * 3 // 2)))


def scored(
    session: SessionId, index: int, prompt: tuple[int, ...], answer: tuple[int, ...], value: float, rng: random.Random
) -> ScoredTurn:
    turn = Completion(
        inference_id=new_inference_id(session),
        session_id=session,
        turn_index=index,
        parent_id=None,
        group_id=GroupId("group"),
        namespace=Namespace("default"),
        user_id=None,
        workload="bench",
        purpose="turn",
        received_at=START,
        messages=(),
        sampling=Sampling(),
        prompt_token_ids=prompt,
        token_ids=answer,
        logprobs=tuple(-6.0 - rng.random() for _ in answer),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="tiny",
        policy_versions=(VersionSpan(start=0, end=len(answer), version=base_ref(1)),),
        tokenizer_digest="t",
        renderer="r",
        finish_reason="stop",
        delivered_tokens=len(answer),
        latency_ms=1.0,
    )
    moment = START + timedelta(seconds=2)
    reward = Reward(
        inference_id=turn.inference_id,
        session_id=session,
        namespace=turn.namespace,
        workload="bench",
        revision=0,
        value=value,
        components={"accepted": value},
        outcome_ids=(OutcomeId("o"),),
        first_outcome_at=moment,
        last_outcome_at=moment,
        why="bench",
        spec="spec",
        final=True,
        decided_at=moment,
    )
    return ScoredTurn(turn, reward)


class RawStep:
    """The floor: a raw torch step."""

    def __init__(self, value_head: dict[str, Tensor]) -> None:
        self.policy: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.anchor: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).requires_grad_(False)
        hidden = self.policy.config.hidden_size
        self.value = nn.Sequential(nn.Linear(hidden, 64), nn.GELU(), nn.Linear(64, 1))
        self.value.load_state_dict(value_head)
        betas = (SETTINGS.optimizer.beta1, SETTINGS.optimizer.beta2)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=SETTINGS.optimizer.learning_rate, betas=betas, weight_decay=0.0, fused=True
        )
        rate = SETTINGS.advantage.value_learning_rate
        self.value_optimizer = torch.optim.AdamW(self.value.parameters(), lr=rate, foreach=True)

    def step(self, parts: Sequence[MicroBatch], rewards_M: Tensor, scale: float) -> tuple[float, float]:
        """Take a step and return (loss per token, norm of the gradient)."""
        num_tokens = sum(len(part.targets_N) for part in parts)
        total = 0.0
        for part in parts:
            losses_N, fit = self._losses(part, rewards_M, scale)
            (losses_N.sum() / num_tokens + fit * (len(losses_N) / num_tokens)).backward()
            total += float(losses_N.detach().sum())
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), SETTINGS.optimizer.gradient_clip)
        for optimizer in (self.optimizer, self.value_optimizer):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total / num_tokens, float(norm)

    def _losses(self, part: MicroBatch, rewards_M: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        hidden_ND, logprobs_N = self._score(self.policy, part)
        with torch.no_grad():
            _, anchor_N = self._score(self.anchor, part)
        values_N = self.value(hidden_ND.detach())[:, 0]
        rewards_N = rewards_M[part.turns_N]
        advantage_N = (rewards_N - values_N.detach()) / scale
        ratio_N = (logprobs_N.detach() - part.behaviour_N).exp().clamp(max=SETTINGS.objective.correction.ratio_cap)
        gap_N = anchor_N - logprobs_N
        kl_N = SETTINGS.objective.kl.coefficient * (gap_N.exp() - 1 - gap_N)
        return -ratio_N * advantage_N * logprobs_N + kl_N, nn.functional.mse_loss(values_N, rewards_N)

    def _score(self, model: Any, part: MicroBatch) -> tuple[Tensor, Tensor]:
        hidden_BTD = model.model(input_ids=part.ids_BT, use_cache=False).last_hidden_state
        hidden_ND = hidden_BTD[part.rows_N, part.places_N]
        logits_NV = model.lm_head(hidden_ND) / part.temperature_N[:, None]
        return hidden_ND, logits_NV.log_softmax(-1).gather(1, part.targets_N[:, None])[:, 0]


def timed(step: Callable[[], object]) -> Callable[[], float]:
    """Return a function that measures the step in CPU milliseconds of this process."""

    def run() -> float:
        started = time.process_time()
        step()
        return 1000 * (time.process_time() - started)

    return run


def main() -> None:
    torch.set_num_threads(1)
    batch = make_batch(0)
    ours = make_state(MODEL, SETTINGS)
    raw = RawStep(ours.advantages.state_dict()["head"])
    parts = micro_batches(merge(batch), batch, SETTINGS.compute.micro_batch_tokens, "cpu")
    rewards = [scored.reward.value for scored in batch]
    rewards_M, scale = torch.tensor(rewards), stdev(rewards)

    metrics = update(ours, batch, SETTINGS).metrics
    loss, norm = raw.step(parts, rewards_M, scale)
    for name, mine, other in (("loss", metrics["loss"], loss), ("gradient norm", metrics["gradient_norm"], norm)):
        assert abs(mine - other) <= AGREEMENT * max(1.0, abs(other)), f"{name}: {mine} here, {other} in the raw step"

    contenders = {
        "ours": timed(lambda: update(ours, batch, SETTINGS)),
        "raw torch": timed(lambda: raw.step(parts, rewards_M, scale)),
    }
    interleave(contenders, 2)
    found = interleave(contenders, ROUNDS)
    tokens = sum(part.ids_BT.numel() for part in parts)
    alone = sum(len(scored.turn.prompt_token_ids) + len(scored.turn.token_ids) for scored in batch)
    report(
        "learner_step",
        [
            Row("raw torch step, 64 turns", found["raw torch"], "CPU ms"),
            Row.at_most(
                "update, 64 turns", found["ours"], "CPU ms", "raw torch step", found["ours"] / found["raw torch"], GOAL
            ),
            Row("update", 1000 * tokens / found["ours"], "padded tokens/s"),
            Row("tokens computed", tokens, "tokens", "each turn alone, unpadded", tokens / alone),
        ],
    )


if __name__ == "__main__":
    main()
