"""Log-probability and entropy from hidden states on a GPU: the kernels against whole logits and others' kernels.

    python -m bench gpu_head [ROUNDS]

Whole logits are what one would write: a product, log_softmax in float32, gather, autograd. Others' kernels are measured
where they are installed: Liger's (`liger-kernel`) and CCE's (`cut-cross-entropy`), both without any filter of small
gradients. All but ours return log-probabilities alone, at temperature 1; ours has entropies and temperatures as well.
Tasks: the forward pass; gradients by hidden states alone, as adapters ask for; and by the output matrix too. Before
anything is measured all are held to float64. Peak memory counts gradients, and not what was there before.

Legend: N tokens, D hidden size, V vocabulary."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from onward_kernels import token_logprobs_and_entropy
from torch import Tensor

from bench.table import Row, interleave, report

TOKENS = 4096
ROUNDS = 9
FLOOR, OURS = "whole logits", "kernels"
TIME_GOAL, MEMORY_GOAL, ERROR_GOAL, AGREEMENT = 1.1, 1 / 3, 1.1, 0.05
FORWARD, ADAPTERS, WHOLE = "forward", "gradient by states", "both gradients"
TASKS = (FORWARD, ADAPTERS, WHOLE)
Contender = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    vocabulary: int
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


SHAPES = (
    Shape("SmolLM2-135M", 576, 49_152),
    Shape("Qwen3-0.6B", 1024, 151_936),
    Shape("Qwen3-8B", 4096, 151_936),
    Shape("SmolLM2-135M", 576, 49_152, torch.float32),
)


def whole_logits(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    logp_NV = (hidden_ND @ weight_VD.T).float().log_softmax(-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0]


def kernels(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    return token_logprobs_and_entropy(hidden_ND, weight_VD, targets_N, torch.ones(len(targets_N), device="cuda"))[0]


def liger(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    functional: Any = import_module("liger_kernel.transformers.functional")
    lost_N: Tensor = functional.liger_fused_linear_cross_entropy(hidden_ND, weight_VD, targets_N, reduction="none")
    return -lost_N


def cce(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    module: Any = import_module("cut_cross_entropy")
    lost_N: Tensor = module.linear_cross_entropy(hidden_ND, weight_VD, targets_N, reduction="none", filter_eps=None)
    return -lost_N


def contenders(shape: Shape) -> dict[str, Contender]:
    found: dict[str, Contender] = {FLOOR: whole_logits, OURS: kernels}
    if find_spec("liger_kernel"):
        found["Liger"] = liger
    if find_spec("cut_cross_entropy") and shape.dtype != torch.float32:
        found["CCE"] = cce
    return found


def make_inputs(shape: Shape, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int, scale: float) -> Tensor:
        return (scale * torch.randn(*size, device="cuda", generator=generator)).to(shape.dtype)

    targets_N = torch.randint(0, shape.vocabulary, (tokens,), device="cuda", generator=generator)
    weight_VD = normal(shape.vocabulary, shape.hidden, scale=2 * shape.hidden**-0.5)
    return normal(tokens, shape.hidden, scale=1.0), weight_VD, targets_N


def computed(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor], task: str) -> list[Tensor]:
    """Return the log-probabilities, and the gradients that the task asks for."""
    hidden_ND, weight_VD = (tensor.detach() for tensor in inputs[:2])
    if task == FORWARD:
        with torch.no_grad():
            return [contender(hidden_ND, weight_VD, inputs[2])]
    asked = [hidden_ND.requires_grad_(), *([weight_VD.requires_grad_()] if task == WHOLE else [])]
    logprobs_N = contender(hidden_ND, weight_VD, inputs[2])
    outer_N = torch.linspace(-1, 1, len(logprobs_N), device="cuda")  # as different as advantages are
    return [logprobs_N.detach(), *torch.autograd.grad((logprobs_N * outer_N).sum(), asked)]


def errors(shape: Shape) -> dict[str, tuple[float, ...]]:
    """Return how far each contender's log-probabilities and gradients are from float64's, relatively."""
    inputs = make_inputs(shape, 256)
    right = computed(whole_in_float64, inputs, WHOLE)
    found: dict[str, tuple[float, ...]] = {}
    for name, contender in contenders(shape).items():
        mine = computed(contender, inputs, WHOLE)
        pairs = zip(mine, right, strict=True)
        apart = tuple(float((one.double() - other.double()).norm() / other.double().norm()) for one, other in pairs)
        assert all(each < AGREEMENT for each in apart), f"{name}, {shape}: {apart}"
        found[name] = apart
    return found


def whole_in_float64(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    logp_NV = (hidden_ND.double() @ weight_VD.double().T).log_softmax(-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0]


def milliseconds(run: Callable[[], object]) -> float:
    kind: Any = torch.cuda.Event
    begun, ended = kind(enable_timing=True), kind(enable_timing=True)
    begun.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return float(begun.elapsed_time(ended))


def peak_mib(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measured(shape: Shape, task: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return each contender's milliseconds and peak memory, medians."""
    inputs = make_inputs(shape, TOKENS)
    runs = {name: partial(computed, contender, inputs, task) for name, contender in contenders(shape).items()}
    times = {name: partial(milliseconds, run) for name, run in runs.items()}
    interleave(times, 2)  # kernels are compiled and chosen
    found = interleave(times, rounds)
    return found, {name: median(peak_mib(run) for _ in range(3)) for name, run in runs.items()}


def compared(what: str, unit: str, found: Mapping[str, float], goal: float) -> Iterator[Row]:
    """Yield a row of each contender against whole logits, with a goal for ours."""
    floor = found[FLOOR]
    for name, value in found.items():
        if name == FLOOR:
            yield Row(f"{name}, {what}", value, unit)
        elif name == OURS:
            yield Row.at_most(f"{name}, {what}", value, unit, FLOOR, value / floor, goal)
        else:
            yield Row(f"{name}, {what}", value, unit, FLOOR, value / floor)


def rows(shape: Shape, rounds: int) -> Iterator[Row]:
    wrong = errors(shape)
    for place, what in enumerate(("log-probabilities", "gradient by states", "gradient by weights")):
        of_each = {name: apart[place] for name, apart in wrong.items()}
        yield from compared(f"{shape}: error of the {what}", "of float64's norm", of_each, ERROR_GOAL)
    for task in TASKS:
        times, peaks = measured(shape, task, rounds)
        yield from compared(f"{shape}: {task}", "ms", times, TIME_GOAL)
        yield from compared(f"{shape}: {task}", "MiB at peak", peaks, MEMORY_GOAL)
        torch.cuda.empty_cache()


def main(rounds: int = ROUNDS) -> None:
    if not torch.cuda.is_available():
        sys.exit("gpu_head: there is no GPU here")
    found = [row for shape in SHAPES for row in rows(shape, rounds)]
    report("gpu_head", [Row("tokens", TOKENS, "tokens"), *found], card=torch.cuda.get_device_name())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
