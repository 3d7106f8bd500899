"""One update of a pretrained model with adapters against raw transformers with peft, on the same batch.

    python -m bench real_update

The batch is like one that users of SmolLM2-135M made: 16 short answers in its chat template, of whose positions half
were sampled. The raw step is what one would write by hand: peft's adapters on a float32 model, the logits of all
positions, log_softmax, the loss with its KL term to the model without adapters, AdamW. It is given finished tensors in
the same micro-batches, and judges, records and counts nothing; ours starts from scored turns. Both begin with the same
adapters, and must agree on the loss and on the norm of the gradient before anything is timed. Users of one model have
its system prompt in common: `shared_prompts` computes it once.

Legend: N sampled tokens, V vocabulary."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peft
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.table import Row, interleave, report
from bench.updates.learner_step import scored, timed
from core.ids import SessionId
from core.model.files import LOCAL
from core.settings import (
    AdmissionSettings,
    AdvantageSettings,
    ComputeSettings,
    KlSettings,
    LearnerSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
    UserSettings,
)
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update

MODEL = Path(os.environ.get("ONWARD_SMOLLM2", Path(__file__).resolve().parents[2] / "models" / "smollm2"))
RANK = 16
TURNS = 16
ROUNDS = 3
GOAL = 1.0
AGREEMENT = 1e-3  # relative
KL = 0.05
SETTINGS = LearnerSettings(
    lora=LoraSettings(rank=RANK),
    optimizer=OptimizerSettings(learning_rate=2e-4),
    objective=ObjectiveSettings(kl=KlSettings(coefficient=KL)),
    advantage=AdvantageSettings(baseline="raw"),
    users=UserSettings(max_share=1.0),
    admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0),
    compute=ComputeSettings(micro_batch_tokens=512),
)
ASKED = "Write a Python function `{name}(xs)` that returns the {what} of the list xs."
WHAT = ("sum", "largest number", "mean", "last two items", "median", "product", "length", "items without repeats")


def make_batch() -> list[ScoredTurn]:
    """Return turns of random answers of 14 to 64 tokens to prompts in the model's own template."""
    tokenizer, rng = AutoTokenizer.from_pretrained(MODEL, **LOCAL), random.Random(0)
    turns: list[ScoredTurn] = []
    for number in range(TURNS):
        asked = ASKED.format(name=f"f{number}", what=WHAT[number % len(WHAT)])
        messages = [{"role": "user", "content": asked}]
        prompt: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        answer = tuple(rng.randrange(1000, len(tokenizer)) for _ in range(rng.randint(14, 64)))
        reward = rng.choice((1.0, -0.5))
        turns.append(scored(SessionId(f"session-{number}"), 0, tuple(prompt), answer, reward, rng))
    return turns


class RawStep:
    def __init__(self, ours: LearnerState) -> None:
        given: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, **LOCAL)
        config = peft.LoraConfig(
            r=RANK,
            lora_alpha=SETTINGS.lora.alpha,  # type: ignore[arg-type]  # it divides, and takes any number
            target_modules="all-linear",
        )
        self.model: Any = peft.get_peft_model(given, config)
        adapter = {f"base_model.model.{name}": each for name, each in ours.policy.adapter_tensors().items()}
        taken: Any = peft.set_peft_model_state_dict(self.model, adapter)
        assert not taken.unexpected_keys
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        betas = (SETTINGS.optimizer.beta1, SETTINGS.optimizer.beta2)
        rate = SETTINGS.optimizer.learning_rate
        self.optimizer = torch.optim.AdamW(self.trained, lr=rate, betas=betas, weight_decay=0.0, fused=True)

    def step(self, parts: Sequence[MicroBatch], rewards_M: torch.Tensor, *, held: bool = True) -> tuple[float, float]:
        """Take a step and return (loss per token, norm of the gradient)."""
        num_tokens, total = sum(len(part.targets_N) for part in parts), 0.0
        for part in parts:
            logprobs_N = self._logprobs(part)
            ratio_N = (logprobs_N.detach() - part.behaviour_N).exp().clamp(max=SETTINGS.objective.correction.ratio_cap)
            loss_N = -ratio_N * rewards_M[part.turns_N] * logprobs_N
            if held:
                with torch.no_grad(), self.model.disable_adapter():
                    gap_N = self._logprobs(part) - logprobs_N.detach()
                gap_N = gap_N + logprobs_N.detach() - logprobs_N
                loss_N = loss_N + KL * (gap_N.exp() - 1 - gap_N)
            (loss_N.sum() / num_tokens).backward()
            total += float(loss_N.detach().sum())
        norm = torch.nn.utils.clip_grad_norm_(self.trained, SETTINGS.optimizer.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total / num_tokens, float(norm)

    def _logprobs(self, part: MicroBatch) -> torch.Tensor:
        logits_NV = self.model(input_ids=part.ids_BT, use_cache=False).logits[part.rows_N, part.places_N]
        logp_NV = (logits_NV / part.temperature_N[:, None]).log_softmax(-1)
        return logp_NV.gather(1, part.targets_N[:, None])[:, 0]


def changed(**changes: Any) -> LearnerSettings:
    return SETTINGS.model_copy(update=changes)


def contenders() -> tuple[dict[str, Callable[[], float]], list[MicroBatch]]:
    batch = make_batch()
    rewards_M = torch.tensor([each.reward.value for each in batch])
    compute = SETTINGS.compute
    parts = micro_batches(merge(batch), batch, compute.micro_batch_tokens, "cpu")
    free = changed(objective=ObjectiveSettings(kl=KlSettings(coefficient=0.0)))
    shared = changed(compute=compute.model_copy(update={"shared_prompts": True}))
    ours = make_state(MODEL, SETTINGS)
    raw = RawStep(ours)
    metrics = update(ours, batch, SETTINGS).metrics
    loss, norm = raw.step(parts, rewards_M)
    for name, mine, other in (("loss", metrics["loss"], loss), ("gradient norm", metrics["gradient_norm"], norm)):
        assert abs(mine - other) <= AGREEMENT * max(1.0, abs(other)), f"{name}: {mine} here, {other} in the raw step"
    return {
        "ours": timed(lambda: update(ours, batch, SETTINGS)),
        "raw": timed(lambda: raw.step(parts, rewards_M)),
        "shared": timed(lambda: update(ours, batch, shared)),
        "free": timed(lambda: update(ours, batch, free)),
        "raw, free": timed(lambda: raw.step(parts, rewards_M, held=False)),
    }, parts


def grown_bytes() -> int:
    """Return the growth of this process's memory up to the end of its second update, at most."""
    batch, process = make_batch(), psutil.Process()
    before = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the highest use of memory so far is forgotten
    state = make_state(MODEL, SETTINGS)
    for _ in range(2):
        update(state, batch, SETTINGS)
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1]) - before


def measured_growth() -> int:
    """Measure it in a process of its own."""
    command = [sys.executable, "-m", "bench.updates.real_update", "grown"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> None:
    if sys.argv[1:] == ["grown"]:
        sys.stdout.write(f"{grown_bytes()}\n")
        return
    torch.set_num_threads(1)
    steps, parts = contenders()
    found = interleave(steps, ROUNDS)
    against = "raw transformers with peft"
    report(
        "real_update",
        [
            Row("positions, padding included", sum(part.positions for part in parts), "tokens"),
            Row("sampled", sum(len(part.targets_N) for part in parts), "tokens"),
            Row(against, found["raw"], "CPU ms"),
            Row.at_most("update", found["ours"], "CPU ms", against, found["ours"] / found["raw"], GOAL),
            Row.at_most(
                "update, `shared_prompts`", found["shared"], "CPU ms", against, found["shared"] / found["raw"], GOAL
            ),
            Row(f"{against}, no KL term", found["raw, free"], "CPU ms"),
            Row.at_most(
                "update, no KL term", found["free"], "CPU ms", against, found["free"] / found["raw, free"], GOAL
            ),
        ],
    )


if __name__ == "__main__":
    main()
