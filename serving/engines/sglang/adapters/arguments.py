"""What adapters need of a server: its arguments, and the names of adapters and of the modules that take one."""

from collections.abc import Mapping
from typing import Any, Final

from core.errors import ConfigError
from core.ids import PolicyRef
from core.settings import LoraSettings, SglangSettings

TOGETHER: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Modules that SGLang computes as one: it takes adapters for all of them or for none."""

TAKEN: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Modules whose adapters SGLang computes on processors and GPUs alike. Not the output matrix: its native backend takes
all tokens of a pass for the few whose logits are wanted (0.5.23, srt/lora/backend/torch_backend.py)."""

GIVEN: Final = "given"
"""An adapter of zeros: the given model itself, as the first version of each policy. Requests without any adapter would
wait for ever while others flood the server: one that is to give way for them is not held back (0.5.23,
srt/lora/lora_drainer.py, where `is_draining_for` None, their adapter, means that it gives way for nobody)."""

_STARVING_S = 1.0  # after which an adapter without a place gets that of a busy one, once its running requests are done


def adapter_of(version: PolicyRef) -> str:
    """Return the name of a version's adapter on servers."""
    return GIVEN if version.is_given else str(version)


def adapter_arguments(settings: SglangSettings, lora: LoraSettings) -> list[str]:
    """Return the arguments of a server that takes the learner's adapters. Raises ConfigError naming the setting."""
    arguments = ["--enable-lora", "--max-lora-rank", str(lora.rank), "--lora-target-modules", *targets_of(lora)]
    arguments += ["--max-loras-per-batch", str(settings.adapters.together)]
    arguments += ["--lora-drain-wait-threshold", str(_STARVING_S)]
    return [*arguments, "--lora-backend", "torch_native"] if settings.device == "cpu" else arguments


def check_takes_adapters(told: Mapping[str, Any], url: str, lora: LoraSettings) -> None:
    """Check what a server that runs already says of itself. Raises ConfigError naming the arguments that it lacks."""
    targets = set(told.get("lora_target_modules") or ())
    takes_all = "all" in targets or set(targets_of(lora)) <= targets
    if not told.get("enable_lora") or (told.get("max_lora_rank") or 0) < lora.rank or not takes_all:
        raise ConfigError(
            f"the server at {url} does not take the adapters of organisations: start it with --enable-lora "
            f"--max-lora-rank {lora.rank} --lora-target-modules {' '.join(targets_of(lora))}"
        )


def targets_of(lora: LoraSettings) -> list[str]:
    """Return the modules that get adapters, and those that SGLang fuses with them. Raises ConfigError."""
    named = [target.rsplit(".", 1)[-1] for target in lora.targets] or list(TAKEN)
    strange = sorted(set(named) - set(TAKEN))
    if strange:
        raise ConfigError(
            f"learner.lora.targets: with organisations SGLang takes adapters of {', '.join(TAKEN)}, and not of "
            f"{', '.join(strange)}"
        )
    whole = {name for group in TOGETHER if set(group) & set(named) for name in group}
    return [name for name in TAKEN if name in whole.union(named)]
