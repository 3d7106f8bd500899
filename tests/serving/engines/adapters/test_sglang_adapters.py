"""Adapters laid out for a SGLang server: what it reads, what never reaches it, and when one may go."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from adapter_world import RANK, Adapters
from safetensors.numpy import load_file
from safetensors.torch import save_file

from core.errors import ConfigError, EngineUnavailable, WeightsError
from core.ids import PolicyName, PolicyRef, Version, base_ref
from core.model.weights_digest import digest_of_shards
from core.ports import AdapterConfig, Opened, WeightsRef
from core.settings import LoraSettings, SglangSettings
from serving.engines.sglang.adapters.arguments import adapter_arguments, check_takes_adapters
from serving.engines.sglang.adapters.draining import Draining, leftovers
from serving.engines.sglang.adapters.files import AdapterFiles

ACME_2 = PolicyRef(PolicyName("acme"), Version(2))


@pytest.fixture
def world(tmp_path: Path) -> Adapters:
    return Adapters(tmp_path)


def files_of(world: Adapters, rank: int = RANK) -> AdapterFiles:
    return AdapterFiles(world.directory / "adapters", world.weights.open(world.anchor), rank)


def publish(world: Adapters, *modules: str, rank: int = RANK) -> WeightsRef:
    """Publish an adapter of these modules of each layer alone."""
    tensors = {}
    for name, module in world.models[base_ref(1)].named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding) and name.rsplit(".", 1)[-1] in modules:
            outputs, inputs = module.weight.shape
            tensors |= {
                f"{name}.lora_A.weight": torch.randn(rank, inputs),
                f"{name}.lora_B.weight": torch.randn(outputs, rank),
            }
    path = world.directory / "some.safetensors"
    save_file(tensors, path)
    config = AdapterConfig(base_digest=world.anchor.digest, rank=rank, alpha=8.0)
    return world.weights.publish(ACME_2, [path], base_ref(1), config)


def test_an_adapter_is_laid_out_as_peft_does(world: Adapters) -> None:
    ref = world.adapter(ACME_2)
    held = files_of(world).put(ref, world.weights.open(ref))
    assert held.directory is not None
    config = json.loads((held.directory / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK, 8.0)
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    (laid_out,) = held.directory.glob("*.safetensors")
    assert digest_of_shards([laid_out]) == digest_of_shards(world.weights.open(ref).shards)


def test_modules_that_are_fused_get_matrices_that_change_nothing(world: Adapters) -> None:
    ref = publish(world, "v_proj", "up_proj")
    held = files_of(world).put(ref, world.weights.open(ref))
    assert held.directory is not None
    zeros = load_file(held.directory / "zeros.safetensors")
    assert {name.split(".")[-3] for name in zeros} == {"q_proj", "k_proj", "gate_proj"}
    assert not any(np.any(value) for value in zeros.values())
    config = json.loads((held.directory / "adapter_config.json").read_text())
    assert config["target_modules"] == ["gate_proj", "k_proj", "q_proj", "up_proj", "v_proj"]


def test_the_given_model_is_an_adapter_of_zeros(world: Adapters) -> None:
    directory = files_of(world).given(["v_proj", "o_proj"])
    zeros = load_file(directory / "zeros.safetensors")
    assert {name.split(".")[-3] for name in zeros} in ({"q_proj", "k_proj", "v_proj"}, {"o_proj"})
    assert not any(np.any(value) for value in zeros.values())
    assert json.loads((directory / "adapter_config.json").read_text())["r"] == 1


def test_a_directory_is_never_used_again(world: Adapters) -> None:
    files, ref = files_of(world), world.adapter(ACME_2)
    first = files.put(ref, world.weights.open(ref))
    files.drop(first)
    second = files.put(ref, world.weights.open(ref))
    assert first.directory != second.directory
    assert first.directory is not None
    assert not first.directory.exists()


def test_the_given_model_is_the_first_version_of_each_policy_and_needs_no_adapter(world: Adapters) -> None:
    opened = world.weights.open(world.anchor)
    first = WeightsRef(version=PolicyRef(PolicyName("acme"), Version(1)), digest=opened.digest, path="there")
    assert files_of(world).put(first, opened).directory is None
    later = WeightsRef(version=ACME_2, digest=opened.digest, path="there")
    with pytest.raises(WeightsError, match="version acme@2 is whole weights"):
        files_of(world).put(later, opened)


def test_what_a_server_would_end_at_never_reaches_it(world: Adapters) -> None:
    ref = world.adapter(ACME_2)
    opened = world.weights.open(ref)
    with pytest.raises(WeightsError, match=r"learner\.lora\.rank is 2"):
        files_of(world, rank=2).put(ref, opened)
    with pytest.raises(WeightsError, match="has digest"):
        files_of(world).put(WeightsRef(version=ACME_2, digest="0" * 64, path="there"), opened)
    other = Opened("0" * 64, world.weights.open(world.anchor).shards)
    with pytest.raises(WeightsError, match="the base is 0000"):
        AdapterFiles(world.directory / "others", other, RANK).put(ref, opened)


def test_an_adapter_of_what_sglang_takes_none_of_is_refused(world: Adapters) -> None:
    ref = publish(world, "embed_tokens")
    with pytest.raises(WeightsError, match=r"SGLang takes no adapter of model\.embed_tokens\.weight"):
        files_of(world).put(ref, world.weights.open(ref))


def test_a_server_is_told_of_all_modules_that_it_fuses() -> None:
    said = adapter_arguments(SglangSettings(), LoraSettings(rank=8, targets=("self_attn.v_proj",)))
    targets = said[said.index("--lora-target-modules") + 1 : said.index("--max-loras-per-batch")]
    assert targets == ["q_proj", "k_proj", "v_proj"]
    assert said[said.index("--max-lora-rank") + 1] == "8"
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets: .* not of lm_head"):
        adapter_arguments(SglangSettings(), LoraSettings(rank=8, targets=("lm_head",)))


@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ({"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["all"]}, True),
        ({"enable_lora": True, "max_lora_rank": 16, "lora_target_modules": ["q_proj", "k_proj", "v_proj"]}, True),
        ({"enable_lora": True, "max_lora_rank": 4, "lora_target_modules": ["all"]}, False),
        ({"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]}, False),
        ({"enable_lora": None}, False),
    ],
)
def test_a_server_that_takes_no_such_adapters_is_refused_with_what_it_lacks(
    told: dict[str, object], fits: bool
) -> None:
    lora = LoraSettings(rank=8, targets=("q_proj",))
    if fits:
        check_takes_adapters(told, "http://one", lora)
        return
    with pytest.raises(ConfigError, match="--enable-lora --max-lora-rank 8 --lora-target-modules q_proj k_proj v_proj"):
        check_takes_adapters(told, "http://one", lora)


def test_an_adapter_goes_once_its_server_is_idle_or_patience_ends() -> None:
    now_s = [100.0]
    draining = Draining(20.0, lambda: now_s[0])

    def at(second: float, *, is_idle: bool) -> bool:
        now_s[0] = 100.0 + second
        return draining.is_over(ACME_2, lambda: is_idle)

    assert not at(0, is_idle=True), "a router may name it still"
    assert not at(2.5, is_idle=False)
    assert at(3, is_idle=True)
    assert not at(4, is_idle=False), "it was loaded again"
    assert not at(8, is_idle=False)
    assert not at(14, is_idle=False), "it was wanted in between"
    assert not any(at(second, is_idle=False) for second in range(15, 34))
    assert at(34, is_idle=False), "patience ends"


def test_adapters_of_a_host_before_us_make_room_and_ours_do_not() -> None:
    assert leftovers({"a@2", "b@2", "5"}, {"a@2"}, 4) == []
    assert leftovers({"a@2", "b@2", "5"}, {"a@2"}, 3) == ["5"]
    assert leftovers({"a@2", "b@2", "5"}, {"a@2"}, 2) == ["5", "b@2"]
    with pytest.raises(EngineUnavailable, match=r"serving\.sglang\.adapters\.loaded is 1"):
        leftovers({"a@2", "b@2", "5"}, {"a@2"}, 1)
