"""Forward and backward over sequences of many lengths: time, places computed, peak memory.

    python -m bench packing

They are padded in the order in which they come, padded by length (what the learner does), or packed into rows
without padding (`learner.compute.packed`). On a CPU packed rows have the whole row's attention computed and masked;
kernels that skip it are for GPUs. Before anything is timed, all three must agree on the gradient."""

import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch

from bench.deltas.delta_peak import memory
from bench.table import Row, interleave, report
from bench.updates.learner_step import MODEL, random_ids, scored, timed
from core.ids import SessionId
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import TrainingSequence, merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches

TURNS, ROUNDS = 64, 15
MEDIAN, SPREAD, LONGEST = 90, 0.9, 900  # tokens of a turn: lognormal
ROW = 1024
AGREEMENT = 1e-4
WAYS = ("padded, in order", "padded, by length", "packed")


def make_batch() -> list[ScoredTurn]:
    rng = random.Random(0)
    batch = []
    for number in range(TURNS):
        length = min(LONGEST, int(MEDIAN * rng.lognormvariate(0, SPREAD)) + 8)
        prompt, answer = random_ids(rng, length * 2 // 3), random_ids(rng, length // 3 + 1)
        batch.append(scored(SessionId(f"session-{number}"), 0, prompt, answer, 1.0, rng))
    return batch


def parts_of(way: str, batch: Sequence[ScoredTurn]) -> list[MicroBatch]:
    sequences = merge(batch)
    if way != "padded, in order":
        return micro_batches(sequences, batch, ROW, "cpu", packed=way == "packed")
    parts: list[MicroBatch] = []
    group: list[TrainingSequence] = []
    for sequence in sequences:
        if group and (len(group) + 1) * max(len(s.token_ids) for s in (*group, sequence)) > ROW:
            parts += micro_batches(group, batch, sys.maxsize, "cpu")
            group = []
        group.append(sequence)
    return parts + micro_batches(group, batch, sys.maxsize, "cpu")


def step_of(policy: PolicyModel, parts: Sequence[MicroBatch]) -> Callable[[], torch.Tensor]:
    """Return a step that gives the gradient's norm."""

    def step() -> torch.Tensor:
        for part in parts:
            logprobs_N, _ = policy.score(policy.hidden_states(part), part)
            logprobs_N.sum().backward()
        norm: torch.Tensor = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
        policy.model.zero_grad(set_to_none=True)
        return norm

    return step


def steps() -> dict[str, Callable[[], torch.Tensor]]:
    batch, policy = make_batch(), PolicyModel(MODEL, "cpu")
    return {way: step_of(policy, parts_of(way, batch)) for way in WAYS}


def growth_mib(way: str) -> float:
    """Measure the growth of memory in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.updates.packing", way], capture_output=True, text=True, check=True
    )
    return float(ran.stdout.split()[-1])


def main() -> None:
    torch.set_num_threads(1)
    contenders = steps()
    if len(sys.argv) > 1:
        before = memory("VmRSS")
        contenders[sys.argv[1]]()
        print((memory("VmHWM") - before) / 2**20)
        return
    norms = {way: float(step()) for way, step in contenders.items()}
    assert max(norms.values()) <= (1 + AGREEMENT) * min(norms.values()), f"norms of the gradient: {norms}"
    found = interleave({way: timed(step) for way, step in contenders.items()}, ROUNDS)
    batch, base = make_batch(), WAYS[0]
    places = {way: sum(part.ids_BT.numel() for part in parts_of(way, batch)) for way in WAYS}
    grown = {way: growth_mib(way) for way in WAYS}
    rows = []
    for way in WAYS:
        rows.append(Row(f"{way}: forward and backward", found[way], "CPU ms", base, found[way] / found[base]))
        rows.append(Row(f"{way}: computed", places[way], "places", "packed", places[way] / places["packed"]))
        rows.append(Row(f"{way}: growth", grown[way], "MiB", base, grown[way] / grown[base]))
    report("packing", rows)


if __name__ == "__main__":
    main()
