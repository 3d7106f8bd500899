"""A policy small enough for hundreds of runs, in the learner's own terms: it replaces `PolicyModel`.

Each token is predicted from the last four (a subclass may see more), by one hidden layer.

Legend: B sequences, T positions, N sampled tokens, W window, E embedding, D hidden size, A choices."""

import copy
from contextlib import AbstractContextManager

import torch
from onward_kernels import token_logprobs_and_entropy
from torch import Tensor, nn

from bench.learning.feedback_world import CHOICES, CONTEXTS
from core.settings import LearnerSettings
from learner.objective.advantages import make_advantages
from learner.sequences.tensors import MicroBatch
from learner.updates.state import LearnerState, make_optimizer

WINDOW, EMBEDDING, HIDDEN = 4, 16, 32
EMPTY = CONTEXTS + CHOICES  # before the beginning


class SmallPolicy:
    hidden_size = HIDDEN
    masks = None
    window = WINDOW
    vocabulary = CONTEXTS + CHOICES
    context_length = 1024

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._embed = nn.Embedding(EMPTY + 1, EMBEDDING)
            self._mix = nn.Linear(self.window * EMBEDDING, HIDDEN)
            self._head = nn.Linear(HIDDEN, CHOICES, bias=False)
            nn.init.normal_(self._head.weight, std=0.02)  # nearly uniform

    def hidden_states(self, batch: MicroBatch) -> Tensor:
        return self._hidden(batch.ids_BT)[batch.rows_N, batch.places_N]

    def _hidden(self, ids_BT: Tensor) -> Tensor:
        padded = nn.functional.pad(ids_BT, (self.window - 1, 0), value=EMPTY)
        window_BTW = padded.unfold(1, self.window, 1)
        return nn.functional.gelu(self._mix(self._embed(window_BTW).flatten(2)))

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND = self.hidden_states(batch)
        return hidden_ND, *self.score(hidden_ND, batch)

    def score(self, hidden_ND: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        targets_N = batch.targets_N - CONTEXTS
        return token_logprobs_and_entropy(hidden_ND, self._head.weight, targets_N, batch.temperature_N)

    def parameters(self) -> list[nn.Parameter]:
        return [each for part in (self._embed, self._mix, self._head) for each in part.parameters()]

    @torch.no_grad()
    def next_logprobs(self, ids_BW: Tensor) -> Tensor:
        """Return [B, A] for the choices after the last WINDOW tokens."""
        return nn.functional.linear(self._hidden(ids_BW)[:, -1], self._head.weight).log_softmax(-1)


def small_state(settings: LearnerSettings, policy: SmallPolicy | None = None) -> LearnerState:
    """Return a state that begins with this policy, or one that knows nothing; it is the anchor, too."""
    policy = policy or SmallPolicy(settings.seed)
    optimizer = make_optimizer(policy, settings.optimizer)  # type: ignore[arg-type]  # has parameters()
    advantages = make_advantages(settings.advantage, HIDDEN, settings.seed, settings.device)
    return LearnerState(policy, copy.deepcopy(policy), optimizer, advantages)  # type: ignore[arg-type]
