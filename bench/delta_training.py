"""Real steps of the learner's optimizer, for what its versions cost.

The shipped model samples answers to the simulated team's tasks; the tests and the team's taste judge them; the
learner's own update follows. Every step has fresh answers, so the gradients are on-policy. The model of 107 million
parameters starts from random weights and sees random tokens under the same optimizer; its master weights are float32.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from bench.learner_step import scored
from bench.model_quality import prompt, user
from core.ids import SessionId
from core.settings import LearnerSettings
from learner.scored import ScoredTurn
from learner.state import LearnerState, make_state
from learner.update import update
from simulator.sandbox import Sandbox
from simulator.tasks import Task, sample_task
from simulator.taste import Taste, judge_write

MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny"
TURNS = 64
MAX_TOKENS = 72
SEQUENCES, LENGTH = 4, 64
LARGE = Qwen3Config(
    vocab_size=32000,
    hidden_size=768,
    intermediate_size=2304,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)
Weights = dict[str, Tensor]
Steps = Iterator[Weights]  # the untouched weights first, then those after every step; copy what is to be kept


def tiny_steps(learning_rate: float) -> Steps:
    settings = LearnerSettings(learning_rate=learning_rate)
    state = make_state(MODEL, settings)
    office = _Office()
    yield state.policy.tensors()
    while True:
        update(state, office.batch(state), settings)
        yield state.policy.tensors()


class _Office:
    """The simulated team's `write` tasks, answered by the policy of the moment."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(MODEL, padding_side="left")

    def batch(self, state: LearnerState) -> list[ScoredTurn]:
        tasks = [sample_task(self._rng, "write") for _ in range(TURNS)]
        prompts = [prompt(self._tokenizer, [user(task)], None) for task in tasks]
        answers = self._answers(state.policy.model, prompts)
        rewards = asyncio.run(self._judge(tasks, [ids for ids, _ in answers]))
        batch = []
        for number, (text, (ids, logprobs), reward) in enumerate(zip(prompts, answers, rewards, strict=True)):
            prompt_ids = tuple(self._tokenizer(text, add_special_tokens=False).input_ids)
            one = scored(SessionId(f"session-{number}"), 0, prompt_ids, ids, reward, self._rng)
            batch.append(ScoredTurn(msgspec.structs.replace(one.turn, logprobs=logprobs), one.reward))
        return batch

    @torch.no_grad()
    def _answers(self, model: Any, prompts: list[str]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Sampled at temperature 1: ids up to the end mark, and their log-probabilities."""
        encoded = self._tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        found = model.generate(
            **encoded,
            max_new_tokens=MAX_TOKENS,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        ids_BT = found.sequences[:, encoded.input_ids.shape[1] :]
        logprobs_BTV = torch.stack(found.logits, 1).log_softmax(-1)
        logprobs_BT = logprobs_BTV.gather(2, ids_BT[..., None])[..., 0]
        ends_BT = torch.isin(ids_BT, torch.tensor(model.generation_config.eos_token_id))
        lengths = [row.index(True) + 1 if True in row else len(row) for row in ends_BT.tolist()]
        rows = zip(lengths, ids_BT.tolist(), logprobs_BT.tolist(), strict=True)
        return [(tuple(ids[:length]), tuple(logprobs[:length])) for length, ids, logprobs in rows]

    async def _judge(self, tasks: list[Task], answers: list[tuple[int, ...]]) -> list[float]:
        sandbox, rewards = Sandbox(), []
        try:
            for task, ids in zip(tasks, answers, strict=True):
                code = self._tokenizer.decode(ids, skip_special_tokens=True)
                result = await sandbox.run(code, task.tests)
                quality = judge_write(code, result.all_passed, Taste())
                rewards.append(1.0 if quality.good else 0.25 if quality.tests_pass else -0.5)
        finally:
            await sandbox.close()
        return rewards


def large_steps(learning_rate: float) -> Steps:
    settings = LearnerSettings(learning_rate=learning_rate)
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(LARGE)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    yield _untied(model)
    while True:
        ids_BT = torch.randint(LARGE.vocab_size, (SEQUENCES, LENGTH))
        model(input_ids=ids_BT, labels=ids_BT).loss.backward()
        clip_grad_norm_(model.parameters(), settings.gradient_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield _untied(model)


def _untied(model: Any) -> Weights:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


SOURCES: dict[str, Callable[[float], Steps]] = {"tiny": tiny_steps, "107M": large_steps}
