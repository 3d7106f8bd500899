"""Loading a published version into a policy: whole weights, or an adapter upon the given model."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from core.errors import ConfigError, WeightsError
from core.model.adapters import A, B, check_base, low_rank_of
from core.ports import AdapterConfig, Opened
from core.settings import LoraSettings
from learner.model import lora
from learner.model.anchor import Anchor
from learner.model.policy_model import PolicyModel

WHOLE = LoraSettings()


def load_version(policy: PolicyModel | Anchor, opened: Opened, settings: LoraSettings = WHOLE) -> None:
    """Load a version. A policy that trains adapters takes an adapter as such, any other merged with the given model.

    Raises WeightsError naming what does not fit, and both digests where the adapter is upon another base; ConfigError
    where adapters of another rank or alpha train here."""
    adapter = opened.adapter
    if adapter is None:
        if settings.rank and opened.digest == policy.base_digest:  # adapters upon it are published as such
            policy.load_given()
        else:
            policy.load(opened.shards)
        return
    check_base(adapter, policy.base_digest, f"{opened.shards[0].parent}")
    tensors = _tensors(opened)
    if settings.rank:
        _require_same(adapter, settings)
        policy.load_adapter(tensors)
        return
    modules = {name: name.removesuffix(".weight") for name in low_rank_of(opened.shards, adapter)}
    low_ranks = {name: (tensors[module + A], tensors[module + B]) for name, module in modules.items()}
    policy.load_merged(low_ranks, adapter.scale)


def first_adapter(policy: PolicyModel, seed: int) -> dict[str, Tensor]:
    """Return an adapter that changes nothing yet, always the same one: A as torch's linear modules begin, B zero.

    A learner that goes back to the given model begins with it, whatever it had trained, so that the same updates can be
    made again."""
    generator, first = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, tensor in sorted(lora.adapters(policy.model).items()):
        values = torch.zeros(tensor.shape)
        if lora.published(name).endswith(A):
            bound = tensor.shape[1] ** -0.5
            values.uniform_(-bound, bound, generator=generator)
        first[lora.published(name)] = values
    return first


def _require_same(adapter: AdapterConfig, settings: LoraSettings) -> None:
    if (adapter.rank, adapter.alpha) != (settings.rank, settings.alpha):
        raise ConfigError(
            f"learner.lora.rank and alpha are {settings.rank} and {settings.alpha:g}, and {adapter.rank} and "
            f"{adapter.alpha:g} in the version to go on from; with a rank of 0 all weights train on from it"
        )


def _tensors(opened: Opened) -> Mapping[str, Tensor]:
    found: dict[str, Tensor] = {}
    for shard in opened.shards:
        try:
            found |= load_file(shard)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{shard}: {error}") from error
    return found
