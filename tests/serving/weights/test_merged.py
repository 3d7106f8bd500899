"""An adapter merged with its base without any tensor library: to the bit what torch makes of it, and nothing half."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import WeightsError
from core.model.adapters import digest_of_version
from core.model.weights_digest import digest_of_shards
from core.ports import AdapterConfig, Opened
from serving.weights.merged import write_merged

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def base_in(directory: Path, dtype: torch.dtype) -> Opened:
    torch.manual_seed(0)
    directory.mkdir()
    one = {"m.weight": torch.randn(48, 32).to(dtype), "norm.weight": torch.ones(7, dtype=torch.bfloat16)}
    save_file(one, directory / "model-1.safetensors")
    save_file({"n.weight": torch.randn(8, 5).to(dtype)}, directory / "model-2.safetensors")
    shards = sorted(directory.iterdir())
    return Opened(digest_of_shards(shards), shards)


def adapter_upon(base: Opened, path: Path, **tensors: torch.Tensor) -> Opened:
    named = {
        "m.lora_A.weight": torch.randn(4, 32) / 100,
        "m.lora_B.weight": torch.randn(48, 4) / 100,
        **{name.replace("__", "."): tensor for name, tensor in tensors.items()},
    }
    save_file(named, path)
    config = AdapterConfig(base_digest=base.digest, rank=4, alpha=6.0)
    return Opened(digest_of_version([path], config), [path], config)


@pytest.mark.parametrize("served", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
def test_sums_are_made_in_float32_and_rounded_once(tmp_path: Path, stored: str, served: str) -> None:
    base = base_in(tmp_path / "base", DTYPES[stored])
    opened = adapter_upon(base, tmp_path / "adapter.safetensors")
    (tmp_path / "out").mkdir()
    made = write_merged(base, opened, tmp_path / "out", served)
    assert [path.name for path in made] == [path.name for path in base.shards]
    found, given, adapter = (
        {n: t for p in ps for n, t in load_file(p).items()} for ps in (made, base.shards, opened.shards)
    )
    whole = given["m.weight"].double() + 1.5 * adapter["m.lora_B.weight"].double() @ adapter["m.lora_A.weight"].double()
    assert found["m.weight"].dtype == DTYPES[served]
    gaps = (found.pop("m.weight").double() - whole).abs() / whole.abs()
    assert float(gaps.max()) < {"float32": 1e-4, "bfloat16": 2**-8 * 1.01, "float16": 2**-11 * 1.01}[served]
    assert float(gaps.mean()) < {"float32": 1e-6, "bfloat16": 2**-9, "float16": 2**-12}[served], "not to the nearest"
    del given["m.weight"]
    assert found.keys() == given.keys()
    assert all(found[name].dtype == given[name].dtype and torch.equal(found[name], given[name]) for name in given)


def test_rounding_to_bfloat16_is_torchs(tmp_path: Path) -> None:
    """An adapter of zeros leaves a float32 base, whose rounding torch does as well: also half-way, to even."""
    base = base_in(tmp_path / "base", torch.float32)
    weight = load_file(base.shards[0])["m.weight"]
    bits = weight.view(torch.int32)
    bits[:16] = (bits[:16] & ~0xFFFF) | 0x8000
    save_file({"m.weight": weight}, base.shards[0])
    base = Opened(digest_of_shards(base.shards), base.shards)
    nothing = {"m__lora_A__weight": torch.zeros(4, 32), "m__lora_B__weight": torch.zeros(48, 4)}
    (tmp_path / "out").mkdir()
    made = write_merged(base, adapter_upon(base, tmp_path / "a.safetensors", **nothing), tmp_path / "out", "bfloat16")
    assert torch.equal(load_file(made[0])["m.weight"], weight.bfloat16())


def test_another_base_is_refused_naming_both(tmp_path: Path) -> None:
    base, other = base_in(tmp_path / "base", torch.float32), base_in(tmp_path / "other", torch.bfloat16)
    opened = adapter_upon(base, tmp_path / "adapter.safetensors")
    with pytest.raises(WeightsError, match=f"adapter upon weights {base.digest}, and the base is {other.digest}"):
        write_merged(other, opened, tmp_path, "float32")


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {"q__lora_A__weight": torch.ones(4, 3), "q__lora_B__weight": torch.ones(2, 4)},
            "the adapter changes q.weight",
        ),
        ({"m__lora_B__weight": torch.ones(47, 4)}, r"the adapter of m.weight is of shape \[47, 32\], not \[48, 32\]"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor], told: str) -> None:
    base = base_in(tmp_path / "base", torch.float32)
    opened = adapter_upon(base, tmp_path / "adapter.safetensors", **tensors)
    with pytest.raises(WeightsError, match=told):
        write_merged(base, opened, tmp_path, "float32")


@pytest.mark.parametrize(("served", "size"), [("float32", 1e38), ("bfloat16", 1e38), ("float16", 1e3)])
def test_a_sum_beyond_the_dtype_is_named(tmp_path: Path, served: str, size: float) -> None:
    base = base_in(tmp_path / "base", torch.float32)
    huge = {"m__lora_A__weight": torch.full((4, 32), size), "m__lora_B__weight": torch.full((48, 4), 100.0)}
    opened = adapter_upon(base, tmp_path / "adapter.safetensors", **huge)
    (tmp_path / "out").mkdir()
    with pytest.raises(WeightsError, match=r"m\.weight is not finite with its adapter"):
        write_merged(base, opened, tmp_path / "out", served)
