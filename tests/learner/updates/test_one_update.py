"""Micro-batches and numbers of processes change the speed of an update, but not its result."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from drifted_world import CASES, Updated, updated
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_update_script import CASE, COUNTS
from torch import Tensor

from learner.batches import admission

SCRIPT = Path(__file__).parents[1] / "parts" / "one_update_script.py"
ALL_AT_ONCE = 100_000


@cache
def at_once(case: str) -> Updated:
    return updated(case, settings={"compute.micro_batch_tokens": ALL_AT_ONCE})


def assert_same(found: Updated, case: str) -> None:
    """Assert that gradients agree to float32, and weights as closely as Adam allows.

    Gradients have norm 1. Adam divides values near zero by themselves, which amplifies their differences."""
    expected = at_once(case)
    assert farthest(found.gradients, expected.gradients) < 1e-6
    moved = sum(float(change.norm()) for change in expected.changes)
    apart = sum(float((a - b).norm()) for a, b in zip(found.changes, expected.changes, strict=True))
    assert apart < 5e-4 * moved
    one, other = found.result, expected.result
    assert [(r.dropped, r.late) for r in one.records] == [(r.dropped, r.late) for r in other.records]
    assert one.metrics == pytest.approx({**other.metrics, "positions": one.metrics["positions"]}, rel=1e-4, abs=1e-5)


def farthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3, deadline=None)
@example(micro_batch_tokens=64, packed=False)
@given(micro_batch_tokens=st.integers(64, 400), packed=st.booleans())
def test_micro_batches_of_any_size_learn_the_same(case: str, micro_batch_tokens: int, packed: bool) -> None:
    assert_same(
        updated(case, settings={"compute.micro_batch_tokens": micro_batch_tokens, "compute.packed": packed}), case
    )


def test_the_batch_as_a_whole_decides() -> None:
    """Otherwise the tests above would show nothing."""
    assert {record.dropped for record in at_once("ess").result.records} == {None, "too_divergent"}
    assert any(record.late for record in at_once("kto").result.records)
    assert any(record.taught for record in at_once("kto").result.records)
    assert any(record.told for record in at_once("kto").result.records)


def test_late_outcomes_are_held_against_the_reference_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = at_once("kto")
    monkeypatch.setattr(admission, "reference_of", lambda _: 3.0)
    other = updated("kto", settings={"compute.micro_batch_tokens": ALL_AT_ONCE})
    assert farthest(other.gradients, usual.gradients) > 1e-3


@pytest.mark.timeout(900)
def test_processes_of_any_number_learn_the_same(tmp_path: Path) -> None:
    """Two and three processes over gloo; with an odd number of micro-batches, one computes what does not count."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [[sys.executable, str(SCRIPT), str(rank), str(tmp_path)] for rank in range(max(COUNTS))]
    said = tmp_path / "said"
    with said.open("ab") as errors:  # a pipe that is not read yet would stop one, and so those that wait for it
        running = [subprocess.Popen(command, env=environment, stderr=errors, cwd=SCRIPT.parent) for command in commands]
    codes = [process.wait() for process in running]
    assert not any(codes), said.read_text()[-4000:]
    for count in COUNTS:
        assert_same(Updated(**torch.load(tmp_path / f"found-{count}", weights_only=False)), CASE)
