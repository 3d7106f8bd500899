"""`onward init`: an `onward.toml` fit for a model and a machine, and a word on why and at what cost."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.table import Table

from core.errors import ConfigError
from core.profile import Card, Machine, ModelShape, Profile, Work, choose, read_shape
from core.profile.choice import Device
from core.profile.words import gigabytes
from onward.directory.layout import Layout
from onward.output import console
from onward.profiles.files import COMPOSE_CARDS, as_compose_env, as_toml

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_NEEDED = ("tokenizer.json", "*.safetensors")


def init(
    directory: Path,
    model: Path,
    device: Device | None,
    memory_gb: float | None,
    num_cards: int | None,
    work: Work = "chat",
) -> None:
    """Write the settings and print them. Raises ConfigError, and then writes nothing.

    An empty file of settings is filled: by one a directory with other files is said to be meant."""
    layout, model = Layout.of(directory), model.resolve()
    if layout.settings.exists() and layout.settings.read_text().strip():
        raise ConfigError(f"{layout.settings} is there already, and is not overwritten")
    shape, machine, profile = profile_of(model, device, memory_gb, num_cards, work)
    layout.ensure()
    layout.settings.write_text(as_toml(model, shape, profile))
    show(shape, machine, profile)
    print(f"{layout.settings} is written; `onward run {shlex.quote(str(directory))}` starts the service")
    if len(machine.cards) >= COMPOSE_CARDS and profile.engine_cards == profile.learner_cards == 1:
        (layout.root / "compose.env").write_text(as_compose_env(model, profile))
        print(f"{layout.root / 'compose.env'} is the same for docker-compose.gpu.yml")


def profile_of(
    model: Path,
    device: Device | None,
    memory_gb: float | None = None,
    num_cards: int | None = None,
    work: Work = "chat",
) -> tuple[ModelShape, Machine, Profile]:
    """Return the shape of a model, a machine, and the settings fit for both. Raises ConfigError."""
    shape, machine = read_model(model), this_machine(device, memory_gb, num_cards)
    return shape, machine, choose(shape, machine, device or ("cuda" if machine.cards else "cpu"), work)


def read_model(directory: Path) -> ModelShape:
    """Read the shape of a model whose directory is whole. Raises ConfigError naming what is missing or not known."""
    from serving.engines.model_facts import read_model_facts

    if not directory.is_dir():
        raise ConfigError(f"--model {directory}: no such directory")
    shape = read_shape(directory)
    for pattern in _NEEDED:
        if not any(directory.glob(pattern)):
            raise ConfigError(f"--model {directory}: {pattern} is missing")
    read_model_facts(directory)
    return shape


def this_machine(device: Device | None, memory_gb: float | None, num_cards: int | None) -> Machine:
    """Return this machine, or one of so many cards, where the memory given is a card's.

    Raises ConfigError when there is no card and nobody says what one has."""
    cards = () if device == "cpu" else _cards()
    if num_cards is not None or (device == "cuda" and not cards):
        if not cards and memory_gb is None:
            raise ConfigError("--device cuda: nvidia-smi shows no card here; --cards and --memory-gb say what there is")
        known = cards[0] if cards else Card("card", 0)
        cards = (known,) * (num_cards or 1)
    given = None if memory_gb is None else int(memory_gb * 1e9)
    if cards and given is not None:
        cards = tuple(Card(card.name, given) for card in cards)
    total = int(psutil.virtual_memory().total)
    return Machine(psutil.cpu_count() or 1, total if cards or given is None else given, cards)


def _cards() -> tuple[Card, ...]:
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = (line.rpartition(",") for line in done.stdout.splitlines() if line.strip())
    return tuple(Card(name.strip(), int(float(mib) * 2**20)) for name, _, mib in lines)


def show(shape: ModelShape, machine: Machine, profile: Profile) -> None:
    """Print what was chosen and why, and what it is expected to cost."""
    chosen = Table("setting", "value", "why", title=f"{shape.kind}, {shape.parameters:,} parameters")
    for choice in profile.choices:
        value = " ".join(choice.value) if isinstance(choice.value, tuple) else str(choice.value)
        chosen.add_row(choice.setting, value, choice.why)
    if not profile.choices:
        chosen.add_row("all", "defaults", "a model of this size learns as the shipped one does")
    expected = Table("expected", "", title=_words(machine))
    for name, value in expectations(profile):
        expected.add_row(name, value)
    console().print(chosen, expected)


def _words(machine: Machine) -> str:
    if machine.cards:
        return f"{len(machine.cards)} x {machine.cards[0].name}, {gigabytes(machine.cards[0].memory_bytes)} each"
    return f"{machine.cores} cores, {gigabytes(machine.memory_bytes)}"


def expectations(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield what the profile is expected to cost, in words."""
    costs = profile.expected
    usual, most = gigabytes(costs.learner_bytes), gigabytes(costs.learner_most_bytes)
    learner = usual if usual == most else f"{usual}; {most} for a session as long as the context"
    if profile.engine_cards:
        yield "memory of each card of the engine", f"{gigabytes(costs.engine_bytes)}, on {profile.engine_cards}"
        yield "memory of each card of the learner", f"{learner}, on {profile.learner_cards}"
    else:
        yield "memory of the service", gigabytes(costs.service_bytes)
        yield "memory of the learner", learner
    yield "disk of a version", gigabytes(costs.version_bytes)
    yield "disk of versions and checkpoints that are kept", gigabytes(costs.disk_bytes)
    turns = profile.settings.learner.batch.turns
    yield f"an update of {turns} turns of {costs.turn_positions:,} tokens", f"{costs.update_s:.1f} s"
    yield "from feedback to the version that learned from it", f"{costs.served_s:.0f} s"
