"""The choice of settings for a model on a machine.

Sizes go down a ladder, from the most to the least, and the first rung that fits is taken: more memory never gives less
of anything."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from core.errors import ConfigError
from core.profile.expectation import (
    CORE_FLOPS,
    LEARNER_BYTES,
    Expectation,
    Work,
    expect,
    learner_of,
    turn_positions,
    update_seconds,
)
from core.profile.machine import Machine
from core.profile.memory import engine_memory
from core.profile.shape import ModelShape
from core.profile.words import gigabytes
from core.settings import Settings
from core.settings.names import nested

Device = Literal["cpu", "cuda"]
EASY_PARAMETERS = 50_000_000
"""A model of fewer parameters learns as the shipped one does: all weights, by the defaults."""
_RANK = 16
_RATE, _RATE_HIDDEN = 6e-4, 576  # SmolLM2-135M's adapters learn at this rate; a wider model's at less
_KL = 0.05
_UPDATE_S = 30.0  # at most, where a smaller batch can help
_PROMPT_S = 20.0  # to compute the longest prompt
_FREE = 0.8  # of a machine's memory is for the service
_RESERVE_BYTES = 6_000_000_000  # of a card: graphs, buffers, fragments
_LONGEST, _SHORTEST = 32768, 512
_MICRO_TOKENS = 256  # on a processor
_SEQUENCES = 8  # as long as the context, that an engine on cards has room for
_DEFAULTS = Settings()


@dataclass(frozen=True)
class ChosenSetting:
    """The value of a setting, where it is not the default, and why."""

    setting: str
    value: Any
    why: str


@dataclass(frozen=True)
class Profile:
    choices: tuple[ChosenSetting, ...]
    expected: Expectation
    engine_cards: int = 0
    learner_cards: int = 0
    """Cards of each; 0: the processor. Both are 1 where they share the only card."""

    @property
    def settings(self) -> Settings:
        return _settings(self.choices)


def choose(shape: ModelShape, machine: Machine, device: Device, work: Work = "chat") -> Profile:
    """Choose the settings. Raises ConfigError when the model does not fit the machine."""
    if device == "cpu":
        return _on_processor(shape, machine, work)
    if not machine.cards:
        raise ConfigError("--device cuda: this machine has no card")
    return _on_cards(shape, machine, work)


def _settings(choices: Iterable[ChosenSetting]) -> Settings:
    return Settings.model_validate(nested({choice.setting: choice.value for choice in choices}))


def _on_processor(shape: ModelShape, machine: Machine, work: Work) -> Profile:
    longest, _ = next(_rungs(shape, machine))
    positions = turn_positions(work, longest)
    training = [*_training(shape), *_batch(shape, machine, _training(shape), positions)]
    if not _is_easy(shape):
        why = "activations take more memory than the model; fewer at a time take less, and hardly more time"
        training.append(ChosenSetting("learner.compute.micro_batch_tokens", _MICRO_TOKENS, why))
        why = "the prompt that all turns of an update begin with is computed once for each micro-batch"
        training.append(ChosenSetting("learner.compute.shared_prompts", True, why))
    bound = int(_FREE * machine.memory_bytes)
    for context, slots in _rungs(shape, machine):
        choices = (*training, *_sizes(shape, context, slots))
        expected = expect(shape, _settings(choices), machine, work=work)
        if expected.service_bytes + expected.learner_most_bytes <= bound:
            return Profile(choices, expected)
    least = gigabytes(expected.service_bytes + expected.learner_most_bytes)
    raise ConfigError(
        f"a model of {shape.parameters:,} parameters needs {least} here at the least, and may use {gigabytes(bound)}, "
        f"{_FREE:.0%} of {gigabytes(machine.memory_bytes)}"
    )


def _rungs(shape: ModelShape, machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield (context, slots), none of which grows."""
    context, slots = shape.context, _DEFAULTS.serving.local.slots
    if not _is_easy(shape):
        prompt = int(_PROMPT_S * CORE_FLOPS / (2 * shape.parameters))
        context, slots = _power_of_two(min(context, max(prompt, _SHORTEST))), min(slots, 4 * machine.cores)
    yield context, slots
    while context > _SHORTEST or slots > 1:
        if context >= 64 * slots and context > _SHORTEST:
            context = max(_SHORTEST, _power_of_two(context - 1))
        else:
            slots = max(1, slots // 2)
        yield context, slots


def _sizes(shape: ModelShape, context: int, slots: int) -> Iterator[ChosenSetting]:
    if context != shape.context:
        why = f"the model has {shape.context:,}; a prompt of this length is computed within {_PROMPT_S:.0f} s, and fits"
        yield ChosenSetting("serving.context_length", context, why)
    if slots != _DEFAULTS.serving.local.slots:
        yield ChosenSetting("serving.local.slots", slots, "four for each core, as long as their keys and values fit")


def _on_cards(shape: ModelShape, machine: Machine, work: Work) -> Profile:
    """Give the engine and the learner the fewest cards on which they have the longest context."""
    for context in _contexts(shape):
        for engine, learner in _shares(shape, machine):
            found = _placed(shape, machine, context, engine, learner, work)
            if found is not None:
                return found
    card = gigabytes(machine.cards[0].memory_bytes)
    raise ConfigError(
        f"a model of {shape.parameters:,} parameters does not fit {len(machine.cards)} x {card}: the engine needs "
        f"{gigabytes(2 * shape.parameters)} for the weights alone, and the learner as much beside it"
    )


def _contexts(shape: ModelShape) -> Iterator[int]:
    context = min(shape.context, _LONGEST)
    yield context
    while context > _SHORTEST:
        context = max(_SHORTEST, _power_of_two(context - 1))
        yield context


def _shares(shape: ModelShape, machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield how many cards engine and learner have, fewest first; one card is shared."""
    if len(machine.cards) == 1:
        yield 1, 1
    counts = [1, 2, 4, 8]
    pairs = [(engine, learner) for engine in counts for learner in counts if shape.heads % engine == 0]
    yield from sorted((pair for pair in pairs if sum(pair) <= len(machine.cards)), key=sum)


def _placed(shape: ModelShape, machine: Machine, context: int, engine: int, learner: int, work: Work) -> Profile | None:
    """Return the profile with so many cards for each, or None where it does not fit."""
    card, is_shared = machine.cards[0], len(machine.cards) == 1
    training = [*_training(shape), *_training_on_cards(shape, machine, context, engine, learner)]
    settings = _settings([*training, ChosenSetting("serving.context_length", context, "")])
    taken = LEARNER_BYTES + learner_of(shape, settings, learner).total
    room = card.memory_bytes - _RESERVE_BYTES
    pool = room - taken if is_shared else room
    wanted = engine_memory(shape, "bfloat16", _SEQUENCES * context, engine).total
    if taken > room or wanted > pool:
        return None
    fraction = int(100 * pool / card.memory_bytes) / 100
    choices = (*training, *_serving_on_cards(shape, context, engine, fraction))
    given = int(fraction * card.memory_bytes)
    expected = expect(shape, _settings(choices), machine, learner, engine_bytes=given, work=work)
    return Profile(choices, expected, engine, learner)


def _training(shape: ModelShape) -> Iterator[ChosenSetting]:
    if _is_easy(shape):
        return
    whole, adapter = gigabytes(2 * shape.parameters), gigabytes(4 * shape.adapter_parameters(_RANK))
    yield ChosenSetting("learner.lora.rank", _RANK, f"adapters, scaled by 2: a version is {adapter}, not {whole}")
    rate = _RATE * _RATE_HIDDEN / shape.hidden
    why = f"adapters of a model {shape.hidden:,} wide; a tenth of it for all weights"
    yield ChosenSetting("learner.optimizer.learning_rate", float(f"{rate:.1e}"), why)
    yield ChosenSetting(
        "learner.objective.kl.coefficient", _KL, "a pretrained model moves little, and is to move at all"
    )


def _batch(
    shape: ModelShape, machine: Machine, training: Iterable[ChosenSetting], positions: int
) -> Iterator[ChosenSetting]:
    """Choose the largest batch whose update is soon done, so that feedback is soon served."""
    learner = _settings(training).learner
    turns, defaults = learner.batch.turns, learner.batch
    while turns > 8 and turns / defaults.turns * update_seconds(shape, learner, machine, positions) > _UPDATE_S:
        turns //= 2
    if turns == defaults.turns:
        return
    yield ChosenSetting("learner.batch.turns", turns, f"an update is to take {_UPDATE_S:.0f} s at most")
    yield ChosenSetting("learner.batch.min_turns", max(8, turns // 4), "fewer would be noise")
    yield ChosenSetting("learner.batch.backlog_turns", 3 * turns, "feedback waits for three updates at most")


def _training_on_cards(
    shape: ModelShape, machine: Machine, context: int, engine: int, learner: int
) -> Iterator[ChosenSetting]:
    where = "cuda" if learner > 1 or len(machine.cards) == 1 else f"cuda:{engine}"
    yield ChosenSetting("learner.device", where, f"{learner} of {len(machine.cards)} cards")
    yield ChosenSetting("learner.compute.precision", "bfloat16", "what the engine computes in")
    yield ChosenSetting("learner.compute.gradient_checkpointing", True, "a third more time for a tenth of the memory")
    yield ChosenSetting(
        "learner.compute.micro_batch_tokens", max(1024, min(context, 16384)), "one session of full length"
    )
    if (peak := machine.cards[0].peak_tflops) is not None:
        yield ChosenSetting("learner.compute.peak_tflops", peak, f"{machine.cards[0].name}: for the figure mfu")
    if learner > 1:
        yield ChosenSetting("learner.enabled", False, f"torchrun starts it, on {learner} cards: see docs/operations.md")


def _serving_on_cards(shape: ModelShape, context: int, engine: int, fraction: float) -> Iterator[ChosenSetting]:
    yield ChosenSetting("serving.engine", "sglang", "for GPUs")
    yield ChosenSetting("serving.sglang.device", "cuda", "")
    yield ChosenSetting("serving.sglang.dtype", "bfloat16", "what the model is stored in")
    if context != shape.context:
        yield ChosenSetting(
            "serving.context_length", context, f"the model has {shape.context:,}; the learner must fit it, too"
        )
    arguments = ["--mem-fraction-static", f"{fraction:.2f}", "--context-length", str(context)]
    arguments += ["--tp-size", str(engine)] if engine > 1 else []
    yield ChosenSetting(
        "serving.sglang.arguments", tuple(arguments), f"room for {_SEQUENCES} sessions of full length or more"
    )


def _is_easy(shape: ModelShape) -> bool:
    return shape.parameters < EASY_PARAMETERS


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
