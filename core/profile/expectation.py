"""The costs that a model is expected to have under given settings on a given machine: memory, disk and time.

The figures that are no arithmetic were measured on the service itself; `onward doctor` holds a
running service to all of them."""

from dataclasses import dataclass
from typing import Final, Literal

from core.model.memory import LearnerBytes
from core.profile.machine import Machine
from core.profile.memory import EngineMemory, learner_memory, local_engine_memory
from core.profile.shape import ModelShape
from core.settings import LearnerSettings, Settings
from core.settings.serving import MOST_CERTIFIED

Work = Literal["chat", "agent"]
"""Who asks: people who chat, or agents, each of whose turns has all that they did before in its prompt."""
_CHAT_POSITIONS: Final = 100
"""Of a chat's turn at the least: those of the demo have ninety on the average."""
_CHAT_SHARE, _AGENT_SHARE = 20, 2  # of the context: an agent's session grows from nothing until it is full
LEARNER_BYTES = 800_000_000
"""The learner's process with torch and transformers in it, before it holds a model."""
_SERVICE_BYTES = 650_000_000  # the service's, with torch
_LIGHT_BYTES = 250_000_000  # without
CORE_FLOPS = 45e9
"""Speed of one core in float32, with AVX2; the learner and the engine use one each."""
_CARD_MFU = 0.3
_UNKNOWN_CARD_TFLOPS = 300.0
_RELEASE_S = 4.5  # the probe of what is published, the gate, and the looks of learner, controller and engine
_SWAP_BYTES_S = 100e6  # of a version that is written, read, verified and loaded; a disk that is busy with other work
_MERGED = 4
"""Versions that an SGLang server's host keeps as files of a whole model: what serves, what served before, a candidate,
and one that is being made."""
_DELTA_SHARE = 0.3  # of a whole version in bfloat16, at the rates chosen here


@dataclass(frozen=True)
class Expectation:
    """Bytes and seconds; on GPUs the memory is that of one card each."""

    service_bytes: int
    engine_bytes: int
    """Memory of an engine on cards; an engine within the service counts as the service's memory."""
    learner_bytes: int
    """For sessions that share a micro-batch, as most do."""
    learner_most_bytes: int
    """For one as long as the context."""
    version_bytes: int
    checkpoint_bytes: int
    disk_bytes: int
    """Disk for the given model as the first version, for the versions and checkpoints that are kept, and for the merged
    versions of SGLang servers' hosts."""
    turn_positions: int
    """Prompt and answer of a turn that time is reckoned for."""
    update_s: float
    served_s: float
    """Time from feedback to a version that learned from it, when updates follow each other without a rest."""


def expect(
    shape: ModelShape,
    settings: Settings,
    machine: Machine,
    devices: int = 1,
    engine_bytes: int = 0,
    work: Work = "chat",
) -> Expectation:
    """Return what `settings` cost; `devices` share the learner, and an engine on cards was given `engine_bytes`."""
    learner, compute = settings.learner, settings.learner.compute
    version, checkpoint = version_bytes(shape, learner), checkpoint_bytes(shape, learner)
    positions = turn_positions(work, context_of(shape, settings))
    seconds = update_seconds(shape, learner, machine, positions, devices)
    return Expectation(
        service_bytes=_service(shape, settings),
        engine_bytes=engine_bytes,
        learner_bytes=LEARNER_BYTES + learner_memory(shape, learner, compute.micro_batch_tokens, devices).total,
        learner_most_bytes=LEARNER_BYTES + learner_of(shape, settings, devices).total,
        version_bytes=version,
        checkpoint_bytes=checkpoint,
        disk_bytes=2 * shape.parameters + _kept(settings, version, checkpoint) + _merged(shape, settings),
        turn_positions=positions,
        update_s=seconds,
        served_s=2 * seconds + _RELEASE_S + version / _SWAP_BYTES_S,
    )


def _kept(settings: Settings, version: int, checkpoint: int) -> int:
    """Return what versions and checkpoints take, where there is a version every ten seconds while all are kept.

    As many others were certified as are kept for that."""
    versions, checkpoints = settings.serving.versions, settings.learner.checkpoints
    others = versions.all_s / 10 + versions.by_minute_s / 60 + versions.by_hour_s / 3600 + versions.by_day_s / 86400
    others += MOST_CERTIFIED
    most = float("inf") if versions.most_gb is None else 1e9 * versions.most_gb
    whole = max(versions.keep * version, min(most, (versions.keep + others) * version))
    return int(whole + (checkpoints.keep + 2) * checkpoint + 1e9 * checkpoints.past_gb)


def _merged(shape: ModelShape, settings: Settings) -> int:
    sglang = settings.serving.sglang
    if settings.serving.engine != "sglang" or not settings.learner.lora.rank:
        return 0  # whole versions are links to those that were published or fetched
    hosts = len(sglang.urls) or sglang.replicas
    return hosts * _MERGED * (4 if sglang.dtype == "float32" else 2) * shape.parameters


def _service(shape: ModelShape, settings: Settings) -> int:
    return _SERVICE_BYTES + local_engine(shape, settings).total if settings.serving.engine == "local" else _LIGHT_BYTES


def local_engine(shape: ModelShape, settings: Settings) -> EngineMemory:
    """Return what the engine within the service takes, with each of its slots full."""
    local, rank = settings.serving.local, settings.learner.lora.rank
    tokens = local.slots * context_of(shape, settings)
    return local_engine_memory(shape, local, tokens, rank)


def learner_of(shape: ModelShape, settings: Settings, devices: int = 1) -> LearnerBytes:
    """Return what the learner takes for the longest session."""
    positions = max(settings.learner.compute.micro_batch_tokens, context_of(shape, settings))
    return learner_memory(shape, settings.learner, positions, devices)


def context_of(shape: ModelShape, settings: Settings) -> int:
    return min(settings.serving.context_length or shape.context, shape.context)


def version_bytes(shape: ModelShape, learner: LearnerSettings) -> int:
    if learner.lora.rank:
        return 4 * shape.adapter_parameters(learner.lora.rank)
    return int(_DELTA_SHARE * 2 * shape.parameters)


def checkpoint_bytes(shape: ModelShape, learner: LearnerSettings) -> int:
    """Return what weights that train and their moments take."""
    trained = shape.adapter_parameters(learner.lora.rank) if learner.lora.rank else shape.parameters
    return 3 * 4 * trained


def turn_positions(work: Work, context: int) -> int:
    """Return how many positions a turn of such work is expected to have where a session may have so many."""
    if work == "agent":
        return max(1, context // _AGENT_SHARE)
    return min(context, max(_CHAT_POSITIONS, context // _CHAT_SHARE))


def update_seconds(
    shape: ModelShape, learner: LearnerSettings, machine: Machine, positions: int, devices: int = 1
) -> float:
    """Return how long an update of as many turns of so many positions as an update may have takes."""
    return learner.batch.turns * positions * position_flops(shape, learner) / _flops(machine, learner, devices)


def position_flops(shape: ModelShape, learner: LearnerSettings) -> int:
    """Count the operations of a position (arXiv:2001.08361, table 1).

    Each weight takes two forward and two for the gradient of what is before it, two for its own gradient when it
    trains, two in the anchor, and two once more where activations are computed again."""
    of_each = 4 if learner.lora.rank else 6
    of_each += 2 if learner.objective.kl.coefficient else 0
    of_each += 2 if learner.compute.gradient_checkpointing else 0
    return of_each * shape.parameters


def _flops(machine: Machine, learner: LearnerSettings, devices: int) -> float:
    if learner.device == "cpu":
        return CORE_FLOPS
    return devices * _CARD_MFU * 1e12 * (machine.cards[0].peak_tflops or _UNKNOWN_CARD_TFLOPS)
