"""Several processes that share a model read their own shards of it and no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from logged_world import MODEL
from safetensors.torch import save_file

from core.model.memory import shapes_by_config
from learner.model.loading import load_whole

SCRIPT = Path(__file__).parents[1] / "parts" / "shards_script.py"
PROCESSES = 4
LARGE = {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_each_process_reads_its_shard_and_no_more(tmp_path: Path) -> None:
    """At most 1.3 times its shard, and a layer."""
    large = tmp_path / "large"
    transformers.LlamaConfig(**LARGE).save_pretrained(large)
    shapes = shapes_by_config(json.loads((large / "config.json").read_text()))
    save_file(
        {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}, large / "m.safetensors"
    )
    paths = os.pathsep.join([str(SCRIPT.parent), *filter(None, sys.path)])
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(PROCESSES), str(large), str(tmp_path)],
            # What is freed is given back at once, so that what is counted is what is held.
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "MALLOC_MMAP_THRESHOLD_": "65536"},
        )
        for rank in range(PROCESSES)
    ]
    assert [process.wait() for process in started] == [0] * PROCESSES
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    numbers = [torch.Size(shape).numel() for name, shape in shapes.items() if ".layers.0." in name]
    shard, layer = (large / "m.safetensors").stat().st_size / PROCESSES, 2 * sum(numbers)
    assert all(each["own"] == pytest.approx(shard, rel=0.02) for each in found)
    assert max(each["loaded"] for each in found) <= 1.3 * shard + layer
    assert max(each["tried"] for each in found) < PROCESSES * shard, "nor when it is tried"
    given = load_whole(MODEL, torch.float32).state_dict()
    tensors = torch.load(tmp_path / "tensors.pt", weights_only=True)
    assert tensors
    assert all(torch.equal(tensor, given[name]) for name, tensor in tensors.items())
