"""The memory that a model takes, in the learner and in an engine: arithmetic alone.

What a program takes before it holds a model was measured; all else follows from shape and settings."""

from dataclasses import dataclass

from core.profile.shape import ModelShape
from core.settings import LearnerSettings, LocalEngineSettings

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PACKED_ELEMENTS = 2**18
_HELD_VERSIONS = 2  # the live one, and the one before or the next
_MOMENTS_BYTES = 8  # AdamW's two, float32
_HEAD_BYTES = 3 * 2**26  # logits of a few tokens at a time, their gradient, and a copy


@dataclass(frozen=True)
class LearnerMemory:
    """Bytes, on one of the devices that share the learner."""

    weights: int
    """The policy's; with adapters the frozen base, which is the anchor too."""
    trained: int
    """What training adds to them: gradients, moments, float32 masters; with adapters these as well."""
    anchor: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.trained + self.anchor + self.activations


def learner_memory(shape: ModelShape, settings: LearnerSettings, positions: int, devices: int = 1) -> LearnerMemory:
    """Return what the learner takes for a forward and backward pass over `positions` at once."""
    parameters, low = shape.parameters, settings.compute.precision != "float32"
    activations = activation_bytes(shape, settings) * positions + _layer_bytes(shape, settings, positions) + _HEAD_BYTES
    if settings.lora.rank:
        trained = shape.adapter_parameters(settings.lora.rank) * (4 + 4 + _MOMENTS_BYTES)
        return LearnerMemory(2 * parameters // devices, trained // devices, 0, activations)
    weights, trained = (2, 2 + 4 + _MOMENTS_BYTES) if low else (4, 4 + _MOMENTS_BYTES)
    anchor = 2 if settings.objective.kl.coefficient else 0
    share = parameters // devices
    return LearnerMemory(weights * share, trained * share, anchor * share, activations)


def activation_bytes(shape: ModelShape, settings: LearnerSettings) -> int:
    """Return what the forward pass keeps of one position for the backward pass."""
    bytes_ = _BYTES[settings.compute.precision]
    if settings.compute.gradient_checkpointing:
        return shape.layers * shape.hidden * bytes_
    return shape.layers * _of_a_layer(shape, settings) * bytes_


def _layer_bytes(shape: ModelShape, settings: LearnerSettings, positions: int) -> int:
    """Return what one layer takes beside that: with checkpointing, its own activations."""
    if not settings.compute.gradient_checkpointing:
        return 0
    return _of_a_layer(shape, settings) * _BYTES[settings.compute.precision] * positions


def _of_a_layer(shape: ModelShape, settings: LearnerSettings) -> int:
    """Count the numbers that one layer keeps of a position.

    Two norms with what goes into them and comes out, queries and keys before and after they are rotated, values, what
    attention gives, and of the MLP the gate, its activation, what it multiplies, and the product."""
    attention = 3 * shape.attention_width + 3 * shape.key_value_width
    adapters = 7 * settings.lora.rank
    return 4 * shape.hidden + attention + 4 * shape.intermediate + adapters


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
