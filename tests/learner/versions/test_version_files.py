"""The files of a version of whole weights: rounded once to what engines compute in, never widened."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from core.settings import LearnerSettings
from learner.updates.state import make_state
from learner.versions.version_files import digest_of, narrowed, write_files
from onward.wiring.foundation import read_directory

MODEL = Path(__file__).resolve().parents[3] / "models" / "tiny"


def test_whole_weights_are_published_in_what_engines_compute_in(tmp_path: Path) -> None:
    state = make_state(MODEL, LearnerSettings())
    masters = {name: tensor.clone() for name, tensor in state.policy.tensors().items()}
    (path,) = write_files(state, tmp_path, "bfloat16").shards
    published = load_file(path)
    assert published.keys() == masters.keys()
    for name, tensor in published.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, masters[name].to(torch.bfloat16))
    assert all(torch.equal(tensor, masters[name]) for name, tensor in state.policy.tensors().items())
    assert 2 * path.stat().st_size < 1.05 * sum(4 * tensor.numel() for tensor in masters.values())


def test_what_is_served_in_float32_has_the_bits_that_train(tmp_path: Path) -> None:
    state = make_state(MODEL, LearnerSettings())
    (tmp_path / "as they are").mkdir()
    assert digest_of(write_files(state, tmp_path, "float32")) == digest_of(
        write_files(state, tmp_path / "as they are", None)
    )


def test_nothing_is_widened_and_integers_stay() -> None:
    tensors = {"half": torch.ones(2, dtype=torch.bfloat16), "full": torch.ones(2), "count": torch.arange(3)}
    assert [each.dtype for each in narrowed(tensors, "float32").values()] == [
        torch.bfloat16,
        torch.float32,
        torch.int64,
    ]
    assert [each.dtype for each in narrowed(tensors, "float16").values()] == [
        torch.bfloat16,
        torch.float16,
        torch.int64,
    ]


@pytest.mark.parametrize(
    ("given", "published"),
    [
        ({}, "float32"),
        ({"ONWARD_SERVING__LOCAL__DTYPE": "bfloat16"}, "bfloat16"),
        ({"ONWARD_SERVING__ENGINE": "sglang", "ONWARD_SERVING__SGLANG__DTYPE": "float16"}, "float16"),
        ({"ONWARD_SERVING__LOCAL__DTYPE": "bfloat16", "ONWARD_LEARNER__COMPUTE__PUBLISHED": "float32"}, "float32"),
    ],
)
def test_the_engines_dtype_is_the_default(tmp_path: Path, given: dict[str, str], published: str) -> None:
    assert read_directory(tmp_path, given)[1].learner.compute.published == published
