"""A model is loaded as it is stored, and made without memory as it would be loaded."""

from pathlib import Path

import pytest
import torch
from families import FAMILIES, make_model
from logged_world import MODEL
from safetensors.torch import save_file

from core.model.files import weight_files
from learner.model.loading import can_fill, load_whole, make_empty, stored_precision
from learner.model.policy_model import PolicyModel


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_model_without_memory_has_the_buffers_of_a_loaded_one(family: str, tmp_path: Path) -> None:
    make_model(family, tmp_path)
    whole, empty = load_whole(tmp_path, torch.float32), make_empty(tmp_path, torch.float32)
    assert can_fill(empty, weight_files(tmp_path))
    found, wanted = dict(empty.named_buffers()), dict(whole.named_buffers())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], buffer) for name, buffer in wanted.items())
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_files_by_other_names_are_not_read_tensor_by_tensor(tmp_path: Path) -> None:
    tensors = PolicyModel(MODEL, "cpu").tensors()
    name = next(iter(tensors))
    save_file({f"another.{key}" if key == name else key: each for key, each in tensors.items()}, tmp_path / "a")
    assert not can_fill(make_empty(MODEL, torch.float32), [tmp_path / "a"])


def test_the_precision_of_files_is_one_that_loses_nothing(tmp_path: Path) -> None:
    half, wide = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    for name, tensors in {"half": {"a": half}, "wide": {"b": wide}}.items():
        save_file(tensors, tmp_path / name)
    assert stored_precision([tmp_path / "half"]) == torch.bfloat16
    assert stored_precision([tmp_path / "wide"]) == torch.float32
    assert stored_precision([tmp_path / "half", tmp_path / "wide"]) == torch.float32
