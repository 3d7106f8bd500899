"""The Triton kernels: interpreted and compiled on any machine, and run on a card where there is one.

Each case has a process of its own: Triton decides at its import whether it interprets, and the processes that this one
starts otherwise must not inherit that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def run(*arguments: str, **environment: str) -> str:
    """Return what the command printed; fails with that text if the command fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd=HERE.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cases(**environment: str) -> str:
    return run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "triton_cases.py"), **environment)


def test_interpreted_kernels_are_their_definition() -> None:
    assert "passed" in cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_kernels_on_a_gpu_are_their_definition() -> None:
    assert "passed" in cases()


def test_a_cpu_needs_no_triton_and_kernels_compile_for_a_card(tmp_path: Path) -> None:
    program = f"""
import runpy, sys, torch
from onward_kernels import token_logprobs_and_entropy as score
score(torch.zeros(2, 3), torch.zeros(9, 3), torch.zeros(2, dtype=torch.long), torch.ones(2), width=4)
assert "triton" not in sys.modules
runpy.run_path({str(HERE / "compile_kernels.py")!r}, run_name="__main__")
"""
    run("-c", program, TRITON_CACHE_DIR=str(tmp_path))
