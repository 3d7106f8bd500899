"""The memory that a model takes under given settings: the learner's by `core.model.memory`, and an engine's."""

from dataclasses import dataclass

from core.model.memory import LearnerBytes, LearnerPlan, learner_bytes
from core.profile.shape import ModelShape
from core.settings import LearnerSettings, LocalEngineSettings

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PACKED_ELEMENTS = 2**18
_HELD_VERSIONS = 2  # the live one, and the one before or the next


def learner_memory(shape: ModelShape, settings: LearnerSettings, positions: int, devices: int = 1) -> LearnerBytes:
    """Return what the learner takes, on each device, for a forward and backward pass over `positions` at once."""
    plan = LearnerPlan(
        rank=settings.lora.rank,
        cards=devices,
        positions=positions,
        is_held=settings.objective.kl.coefficient > 0,
        checkpointed=settings.compute.gradient_checkpointing,
        computed=_BYTES[settings.compute.precision],
    )
    return learner_bytes(shape.shapes, plan)


@dataclass(frozen=True)
class EngineMemory:
    """Bytes of an engine, on one of its devices."""

    weights: int
    cache: int
    """Keys and values of `tokens`."""

    @property
    def total(self) -> int:
        return self.weights + self.cache


def engine_memory(shape: ModelShape, dtype: str, tokens: int, devices: int = 1) -> EngineMemory:
    """Return what an engine takes that holds the model, and keys and values of so many tokens."""
    bytes_ = _BYTES[dtype]
    return EngineMemory(bytes_ * shape.parameters // devices, bytes_ * shape.cached_numbers * tokens // devices)


def local_engine_memory(shape: ModelShape, settings: LocalEngineSettings, tokens: int, rank: int) -> EngineMemory:
    """Return what the engine within the service takes, which holds several versions.

    Large matrices are packed in half precision (decision 30), and adapters of `rank` are computed beside them, so that
    their versions share them."""
    bytes_ = _BYTES[settings.dtype]
    is_packed = settings.device == "cpu" and shape.hidden * shape.intermediate >= _PACKED_ELEMENTS
    of_each = 2 if is_packed else bytes_
    if rank and is_packed:
        weights = of_each * shape.parameters + _HELD_VERSIONS * 4 * shape.adapter_parameters(rank)
    else:
        weights = _HELD_VERSIONS * of_each * shape.parameters
    return EngineMemory(weights, bytes_ * shape.cached_numbers * tokens)
