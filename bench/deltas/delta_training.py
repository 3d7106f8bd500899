"""Real steps of the learner's optimizer, whose versions are measured.

The shipped model samples answers to the simulated team's tasks; the tests and the team's taste judge them; the
learner's own update follows. Every step has fresh answers, so the gradients are on-policy. The model of 107 million
parameters starts from random weights and sees random tokens under the same optimizer; its master weights are
float32."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.learning.office import MODEL, Office, worth
from core.settings import LearnerSettings, OptimizerSettings
from learner.updates.state import make_state
from learner.updates.update import update

TURNS = 64
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
    settings = LearnerSettings(optimizer=OptimizerSettings(learning_rate=learning_rate))
    state = make_state(MODEL, settings)
    office = Office()
    yield state.policy.tensors()
    while True:
        answered = office.work(state.policy.model, TURNS)
        batch = [each.turn(number, worth(each.quality), office.rng) for number, each in enumerate(answered)]
        update(state, batch, settings)
        yield state.policy.tensors()


def large_steps(learning_rate: float) -> Steps:
    settings = LearnerSettings(optimizer=OptimizerSettings(learning_rate=learning_rate))
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(LARGE)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=learning_rate,
        betas=(settings.optimizer.beta1, settings.optimizer.beta2),
        weight_decay=settings.optimizer.weight_decay,
        fused=True,
    )
    yield _untied(model)
    while True:
        ids_BT = torch.randint(LARGE.vocab_size, (SEQUENCES, LENGTH))
        model(input_ids=ids_BT, labels=ids_BT).loss.backward()
        clip_grad_norm_(model.parameters(), settings.optimizer.gradient_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield _untied(model)


def _untied(model: Any) -> Weights:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


SOURCES: dict[str, Callable[[float], Steps]] = {"tiny": tiny_steps, "107M": large_steps}
