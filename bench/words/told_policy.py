"""A policy of some thousand parameters that does what it is told in a request: two layers of attention.

It replaces `PolicyModel` for the learner's own update. Before anything is learned from users it is trained to heed
words, from examples, as a chat model is.

Legend: B sequences, T positions, N sampled tokens, H of them, K candidates, D hidden size, V vocabulary."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from bench.words.told_world import (
    ANSWER,
    BODIES,
    BODY_0,
    END,
    LONGEST,
    RATHER,
    REQUESTS,
    SAY,
    SHORT,
    STYLE_0,
    STYLES,
    VOCABULARY,
)
from learner.sequences.tensors import MicroBatch

HIDDEN, HEADS, LAYERS = 32, 2, 2
CONTEXT = 12
STEPS, EXAMPLES, RATE = 500, 64, 4e-3
OBEYS, KNOWS = 0.85, 0.9  # how often the examples heed words, and name the body that was asked for
TOLD = 0.7  # share of examples with words


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.mix, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, length, _ = x_BTD.shape
        split = self.mix(self.before(x_BTD)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        x_BTD = x_BTD + self.out(seen.transpose(1, 2).flatten(2))
        return x_BTD + self.narrow(nn.functional.gelu(self.wide(self.between(x_BTD))))


class ToldPolicy(nn.Module):
    hidden_size, masks, context_length = HIDDEN, None, CONTEXT
    stop_ids = (END,)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        self.layers = nn.Sequential(*(_Layer() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    @property
    def prompts(self) -> "ToldPolicy":
        return self

    def encode(self, words: str) -> tuple[int, ...]:
        return tuple(map(int, words.split()))

    def place_in(self, prompt_token_ids: Sequence[int]) -> int:
        return len(prompt_token_ids) - 1

    def hidden(self, ids_BT: Tensor) -> Tensor:
        places_T = torch.arange(ids_BT.shape[1])
        return self.last(self.layers(self.embed(ids_BT) + self.places(places_T)))  # type: ignore[no-any-return]

    def logprobs(self, hidden_ND: Tensor) -> Tensor:
        return self.head(hidden_ND).log_softmax(-1)  # type: ignore[no-any-return]

    def hidden_states(self, batch: MicroBatch) -> Tensor:
        return self.hidden(batch.ids_BT)[batch.rows_N, batch.places_N]

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND = self.hidden_states(batch)
        logp_NV = self.logprobs(hidden_ND)
        return hidden_ND, logp_NV.gather(1, batch.targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(1)

    @torch.no_grad()
    def candidates(
        self, batch: MicroBatch, count: int, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        logp_NV = self.logprobs(self.hidden_states(batch))
        own_N = logp_NV.gather(1, batch.targets_N[:, None])[:, 0]
        return own_N, torch.arange(VOCABULARY).expand(len(own_N), -1), logp_NV

    def candidate_logprobs(self, hidden_ND: Tensor, batch: MicroBatch, tokens_H: Tensor, ids_HK: Tensor) -> Tensor:
        return self.logprobs(hidden_ND[tokens_H]).gather(1, ids_HK)

    def parameters(self, recurse: bool = True) -> list[nn.Parameter]:  # type: ignore[override]  # as PolicyModel's
        return list(super().parameters(recurse))

    @torch.no_grad()
    def answers(self, prompts: Sequence[tuple[int, ...]], luck: np.ndarray) -> list[tuple[list[int], list[float]]]:
        """Return (tokens, log-probabilities) of each prompt; all prompts are of one length."""
        ids_BT = torch.tensor(prompts)
        logprobs_B: list[Tensor] = []
        for place in range(LONGEST):
            logp_BV = self.logprobs(self.hidden(ids_BT)[:, -1])
            below_BV = logp_BV.exp().cumsum(1)[:, :-1] < torch.tensor(luck[:, place : place + 1], dtype=torch.float32)
            token_B1 = below_BV.sum(1, keepdim=True)
            logprobs_B.append(logp_BV.gather(1, token_B1)[:, 0])
            ids_BT = torch.cat([ids_BT, token_B1], 1)
        said_BT, logp_BT = ids_BT[:, len(prompts[0]) :].tolist(), torch.stack(logprobs_B, 1).tolist()
        lengths = [1 + said.index(END) if END in said else LONGEST for said in said_BT]
        return [(s[:length], lp[:length]) for s, lp, length in zip(said_BT, logp_BT, lengths, strict=True)]


def made_to_heed(seed: int) -> ToldPolicy:
    """Return a policy that heeds words, trained from examples."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = ToldPolicy()
        rng = np.random.default_rng((8, seed))
        optimizer = torch.optim.AdamW(policy.parameters(), RATE, weight_decay=0.0)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - step / STEPS))
            ids_BT, is_answer_BT = _examples(rng)
            logp_BTV = policy.logprobs(policy.hidden(ids_BT[:, :-1]))
            loss_BT = -logp_BTV.gather(2, ids_BT[:, 1:, None])[..., 0]
            optimizer.zero_grad()
            loss_BT[is_answer_BT[:, 1:]].mean().backward()
            optimizer.step()
    return policy


def _examples(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    rows = [_example(rng) for _ in range(EXAMPLES)]
    ids_BT = torch.zeros(EXAMPLES, CONTEXT, dtype=torch.long)
    is_answer_BT = torch.zeros(EXAMPLES, CONTEXT, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        whole = [*prompt, *answer]
        ids_BT[row, : len(whole)] = torch.tensor(whole)
        is_answer_BT[row, len(prompt) : len(whole)] = True
    return ids_BT, is_answer_BT


def _example(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    request = int(rng.integers(REQUESTS))
    style, body, words, short = int(rng.integers(STYLES)), request, list[int](), False
    if rng.random() >= KNOWS:
        body = int(rng.integers(BODIES))
    if rng.random() < TOLD:
        kinds = rng.random(3) < (0.8, 0.3, 0.3)
        if kinds[0]:
            told = int(rng.integers(STYLES))
            words += [RATHER, STYLE_0 + told]
            style = told if rng.random() < OBEYS else style
        if kinds[1]:
            told = int(rng.integers(BODIES))
            words += [SAY, BODY_0 + told]
            body = told if rng.random() < OBEYS else body
        if kinds[2]:
            words.append(SHORT)
            short = rng.random() < OBEYS
    answer = [STYLE_0 + style, END] if short else [STYLE_0 + style, BODY_0 + body, END]
    return [request, *words, ANSWER], answer
