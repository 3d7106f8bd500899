"""A whole loop on adapters: learned, published, swapped in, rolled back, and lived again; the base is never copied."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretrained import smollm2
from service_tree import Service, simulate, wait_for

from core.model.weights_digest import digest_of_shards
from onward.directory.layout import SHIPPED_MODEL
from onward.replays.as_lived import prove

pytestmark = pytest.mark.timeout(900)  # on whatever machine
MakeService = Callable[..., Service]
LEARNS = {
    "learner.lora.rank": 4,
    "learner.optimizer.learning_rate": 4e-3,
    "learner.batch.turns": 16,
    "learner.batch.min_turns": 8,
}


def served_by(service: Service, *, model: str = "onward-tiny") -> int:
    client = service.client()
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4)
    return int(answer.model_extra["onward"]["policy_version"])  # type: ignore[index]


def published(service: Service, version: int) -> tuple[dict[str, Any], int]:
    """Return what a version's manifest says of its adapter, and the bytes of its files."""
    files = service.directory / "blobs" / "weights" / f"{version:08d}"
    adapter = json.loads((files / "manifest.json").read_text())["adapter"]
    return adapter, sum(path.stat().st_size for path in files.iterdir())


def roll_back(service: Service) -> None:
    command = [sys.executable, "-m", "onward", "rollback", "1", str(service.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_adapters_are_learned_served_rolled_back_and_lived_again(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(**LEARNS).start()
    driver = simulate(service, tmp_path / "demo", seconds=12, rate=8)
    newer = wait_for(lambda: (version := served_by(service)) > 1 and version, what="an adapter that serves")
    adapter, _ = published(service, newer)
    base = digest_of_shards([SHIPPED_MODEL / "model.safetensors"])
    assert adapter == {"base_digest": base, "rank": 4, "alpha": 32.0}
    driver.communicate(timeout=120)
    roll_back(service)
    wait_for(lambda: served_by(service) == 1, what="the given model again")
    service.stop()
    assert prove(service.directory, newer, service.overrides)


def test_a_pretrained_model_learns_as_an_adapter_of_megabytes(make_service: MakeService) -> None:
    """Users accept or reject at random: what is looked at is how the version reaches them, and how they lose it."""
    model = smollm2()
    service = make_service(
        **{
            "serving.model": model,
            "serving.model_name": "smollm2",
            "serving.context_length": 256,
            "serving.local.slots": 4,
            "learner.lora.rank": 16,
            "learner.optimizer.learning_rate": 2e-4,
            "learner.batch.turns": 4,
            "learner.batch.min_turns": 4,
        }
    ).start()
    client = service.client()
    for number in range(4):
        question = {"role": "user", "content": f"Say {number} in words."}
        answer = client.chat.completions.create(model="smollm2", messages=[question], max_tokens=8)  # type: ignore[list-item]
        onward = answer.model_extra["onward"]  # type: ignore[index]
        said = {"inference_id": onward["inference_id"], "metric_name": "accepted", "value": bool(number % 2)}
        service.post("/v1/feedback", said)
    wait_for(lambda: served_by(service, model="smollm2") == 2, 300, "the adapter that serves")
    adapter, size = published(service, 2)
    assert adapter["base_digest"] == digest_of_shards([model / "model.safetensors"])
    assert size < 30e6
    roll_back(service)
    wait_for(lambda: served_by(service, model="smollm2") == 1, what="the given model again")
