"""The simulated team's `write` tasks in one process: a policy answers them, the tests and the team's taste judge."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoTokenizer

from bench.demos.model_quality import prompt, user
from bench.updates.learner_step import scored
from core.ids import SessionId
from learner.sequences.scored import ScoredTurn
from simulator.tasks.sampling import UserTask, sample_task
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.taste import SessionQuality, Taste, judge_write

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
MAX_TOKENS = 72


@dataclass(frozen=True)
class Answered:
    """A task, the policy's answer to it, and the answer's true quality."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    quality: SessionQuality

    def turn(self, number: int, reward: float, rng: random.Random) -> ScoredTurn:
        """Return the turn as the learner gets it."""
        one = scored(SessionId(f"session-{number}"), 0, self.prompt_ids, self.token_ids, reward, rng)
        return ScoredTurn(msgspec.structs.replace(one.turn, logprobs=self.logprobs), one.reward)


class Office:
    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(MODEL, padding_side="left")

    def work(self, model: Any, count: int) -> list[Answered]:
        tasks = [sample_task(self.rng, "write") for _ in range(count)]
        prompts = [prompt(self._tokenizer, [user(task)], None) for task in tasks]
        answers = self._answers(model, prompts)
        qualities = asyncio.run(self._judge(tasks, [ids for ids, _ in answers]))
        return [
            Answered(tuple(self._tokenizer(text, add_special_tokens=False).input_ids), ids, logprobs, quality)
            for text, (ids, logprobs), quality in zip(prompts, answers, qualities, strict=True)
        ]

    @torch.no_grad()
    def _answers(self, model: Any, prompts: list[str]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Sample at temperature 1 and return ids up to the end mark, with their log-probabilities."""
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

    async def _judge(self, tasks: list[UserTask], answers: list[tuple[int, ...]]) -> list[SessionQuality]:
        sandbox, qualities = ForkServer(), []
        try:
            for task, ids in zip(tasks, answers, strict=True):
                code = self._tokenizer.decode(ids, skip_special_tokens=True)
                result = await sandbox.run(code, task.tests)
                qualities.append(judge_write(code, result.all_passed, Taste().style(task)))
        finally:
            await sandbox.close()
        return qualities


def worth(quality: SessionQuality) -> float:
    """Return roughly what an honest user's feedback is worth under the shipped spec."""
    return 1.0 if quality.good else 0.25 if quality.tests_pass else -0.5
