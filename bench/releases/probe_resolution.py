"""The resolution of the probe: whether it tells a version from the one before it, by learning rate.

It shows how far two records are apart, and in which dtypes that is more than the noise of an engine's other kernels.
`python -m bench probe_resolution` needs no engine. One step of AdamW moves each weight by at most about the learning
rate (arXiv 1412.6980, section 2.1), either way; here by exactly that. The comparison is that of
`core.model.probes.nearer`."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from safetensors.torch import load_file, save_file

from bench.table import Row, report
from core.model.probes import ProbeRecord, nearer
from learner.model.policy_model import PolicyModel
from learner.versions.probe import probe_of_model, record

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
LEARNING_RATES = (1e-6, 1e-5, 1e-4, 5e-4)


def after_a_step(policy: PolicyModel, probe: ProbeRecord, rate: float, directory: Path) -> ProbeRecord:
    generator = torch.Generator().manual_seed(0)
    moved = {}
    for name, value in load_file(MODEL / "model.safetensors").items():
        way = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        moved[name] = value.float() + rate * way
    shard = directory / "model.safetensors"
    save_file(moved, shard)
    policy.load([shard])
    return record(policy, probe, f"{rate:064.0f}"[:64])


def distance(one: ProbeRecord, other: ProbeRecord) -> float:
    gaps = np.array(
        [p - q for a, b in zip(one.logprobs, other.logprobs, strict=True) for p, q in zip(a, b, strict=True)]
    )
    return float(np.sqrt(np.mean(gaps**2)))


def main() -> None:
    policy, before = PolicyModel(MODEL, "cpu"), probe_of_model(MODEL, "cpu")
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for rate in track(LEARNING_RATES, description="steps"):
            after = after_a_step(policy, before, rate, Path(directory))
            told = [d for d in ("float32", "float16", "bfloat16") if nearer(after.logprobs, after, before, d) == "own"]
            against = (
                f"told apart in {', '.join(told)}" if told else "told apart in no dtype: by the weights' digest alone"
            )
            rows.append(Row(f"lr {rate:g}: root mean square between records", distance(before, after), "nats", against))
    report("probe_resolution", rows)


if __name__ == "__main__":
    main()
