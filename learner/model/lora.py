"""Low-rank adapters (LoRA, arXiv:2106.09685), by peft.

Each chosen matrix W of the model stays as it is, and two thin ones beside it learn: W' = W + (alpha / rank) B A, with B
= 0 at first. W' is published under W's name."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from core.errors import ConfigError
from core.settings import LoraSettings

_ADAPTER, _BASE, _MARK = "default", ".base_layer", ".lora_"


def adapt(model: nn.Module, settings: LoraSettings) -> None:
    """Add adapters to the model. Raises ConfigError when no module has a name in `learner.lora.targets`."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.utils.error import NoMatchingPeftModuleError

    targets: Any = list(settings.targets) or "all-linear"
    config = LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=targets)
    try:
        inject_adapter_in_model(config, model)
    except NoMatchingPeftModuleError as error:
        raise ConfigError(f"learner.lora.targets: {error}") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_MARK in name)


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return A and B of all adapters, by name."""
    return {name: tensor for name, tensor in model.state_dict().items() if _MARK in name}


def published(name: str) -> str:
    """Return an adapter's name in a published version, which knows of one adapter alone."""
    return name.replace(f".{_ADAPTER}.", ".")


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that the adapters stand beside, by the model's own names."""
    return {name.replace(_BASE, ""): tensor for name, tensor in model.state_dict().items() if _MARK not in name}


def deltas(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name of W, W' - W) of each adapter."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            yield f"{name}.weight", module.get_delta_weight(_ADAPTER)


def forget(model: nn.Module) -> None:
    """Set B to 0, so that W' = W again; A stays as it is."""
    for name, tensor in adapters(model).items():
        if f"{_MARK}B." in name:
            tensor.zero_()
