"""Log-probability and entropy from hidden states, in tiles against the whole logits: time and peak memory on a CPU.

    python -m bench logprob_head [TOKENS [ROUNDS]]
    python -m bench logprob_head of CONTENDER VOCABULARY TOKENS     one run, as JSON: what the former starts

The naive contender is what one would write: logits, log_softmax, autograd. Forward and backward, gradients by hidden
states and by the output matrix of both outputs, at the hidden size of Qwen3-0.6B. Every run is a process of its own on
one thread, whose high-water mark is the kernel's (Linux: /proc/self/status); what it held before it began (torch, the
hidden states, the output matrix) is not counted, the gradients are. Before anything is measured, both must agree.

Legend: N tokens, D hidden size, V vocabulary.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from onward_kernels import token_logprobs_and_entropy
from torch import Tensor

from bench.deltas.delta_peak import memory
from bench.table import Row, interleave, report

VOCABULARIES = {"32k": 32_000, "151k": 151_936}
HIDDEN = 1024
TOKENS = 1024
ROUNDS = 3
MEMORY_GOAL, TIME_GOAL = 1 / 3, 1.1
AGREEMENT = 1e-4

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def naive(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
    logp_NV = torch.log_softmax((hidden_ND @ weight_VD.T) / temperature_N[:, None], dim=-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


CONTENDERS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"naive": naive, "tiles": token_logprobs_and_entropy}


def make_inputs(tokens: int, hidden: int, vocabulary: int) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(tokens, hidden, generator=generator).requires_grad_()
    weight_VD = torch.empty(vocabulary, hidden).normal_(std=hidden**-0.5, generator=generator).requires_grad_()
    targets_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
    return hidden_ND, weight_VD, targets_N, 0.5 + torch.rand(tokens, generator=generator)


def run(contender: str, inputs: Inputs) -> tuple[Tensor, ...]:
    logprobs_N, entropy_N = CONTENDERS[contender](*inputs)
    (-logprobs_N.mean() - 0.01 * entropy_N.mean()).backward()
    hidden_ND, weight_VD = inputs[:2]
    assert hidden_ND.grad is not None
    assert weight_VD.grad is not None
    return logprobs_N.detach(), entropy_N.detach(), hidden_ND.grad, weight_VD.grad


def check() -> None:
    for mine, plain in zip(*(run(name, make_inputs(19, 64, 9_001)) for name in ("tiles", "naive")), strict=True):
        torch.testing.assert_close(mine, plain, rtol=AGREEMENT, atol=AGREEMENT * float(plain.abs().max()))


def one(contender: str, vocabulary: int, tokens: int) -> None:
    torch.set_num_threads(1)
    run(contender, make_inputs(8, 64, 9_001))  # libraries load, kernels are chosen
    inputs = make_inputs(tokens, HIDDEN, vocabulary)
    before, started = memory("VmRSS"), time.process_time()
    run(contender, inputs)
    seconds = time.process_time() - started
    print(json.dumps({"seconds": seconds, "bytes": memory("VmHWM") - before}))


def compare(label: str, vocabulary: int, tokens: int, rounds: int) -> list[Row]:
    peaks: dict[str, list[float]] = {name: [] for name in CONTENDERS}

    def seconds(contender: str) -> float:
        command = [sys.executable, "-m", "bench.updates.logprob_head", "of", contender, str(vocabulary), str(tokens)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        peaks[contender].append(found["bytes"])
        return float(found["seconds"])

    times = interleave({name: partial(seconds, name) for name in CONTENDERS}, rounds)
    peak = {name: median(values) / 2**20 for name, values in peaks.items()}
    shape = f"{tokens} tokens x {label}"
    return [
        Row(f"naive, {shape}", times["naive"], "CPU s"),
        Row.at_most(f"tiles, {shape}", times["tiles"], "CPU s", "naive", times["tiles"] / times["naive"], TIME_GOAL),
        Row(f"naive, {shape}", peak["naive"], "MiB at peak"),
        Row.at_most(
            f"tiles, {shape}", peak["tiles"], "MiB at peak", "naive", peak["tiles"] / peak["naive"], MEMORY_GOAL
        ),
    ]


def main(tokens: int = TOKENS, rounds: int = ROUNDS) -> None:
    check()
    report(
        "logprob_head",
        [row for label, size in VOCABULARIES.items() for row in compare(label, size, tokens, rounds)],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["of"]:
        one(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main(*map(int, sys.argv[1:]))
