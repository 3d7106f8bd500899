"""The guide's table of memory is what the arithmetic says."""

from pathlib import Path

import pytest
from model_configs import written

from core.errors import ConfigError
from core.profile import Card, Machine, ModelShape, choose, read_shape
from core.profile.words import gigabytes

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "your-own-model.md"
LABELS = {
    "smollm2-135m": "SmolLM2-135M",
    "llama-3.2-1b": "Llama-3.2-1B",
    "qwen3-8b": "Qwen3-8B",
    "qwen3-32b": "Qwen3-32B",
}


def machine(cards: int) -> Machine:
    return Machine(2, 24 * 10**9, (Card("NVIDIA H100 80GB HBM3", 80 * 10**9),) * cards)


def row(label: str, shape: ModelShape, cards: int) -> str:
    where = f"{cards} x 80 GB" if cards else "2 cores, 24 GB"
    try:
        profile = choose(shape, machine(cards), "cuda" if cards else "cpu")
    except ConfigError:
        return f"| {label} | {where} | - | does not fit | | | | |"
    costs = profile.expected
    engine = costs.engine_bytes if cards else costs.service_bytes
    shared = "shared" if cards else "-"
    given = f"{profile.engine_cards} + {profile.learner_cards}" if cards > 1 else shared
    sizes = (engine, costs.learner_most_bytes, costs.version_bytes, costs.disk_bytes)
    context = profile.settings.serving.context_length or shape.context
    return f"| {label} | {where} | {given} | {context:,} | {' | '.join(map(gigabytes, sizes))} |"


@pytest.mark.parametrize("name", LABELS)
def test_each_row_is_what_is_reckoned(tmp_path: Path, name: str) -> None:
    shape = read_shape(written(tmp_path, name))
    rows = GUIDE.read_text().splitlines()
    for cards in (1, 8) if name != "smollm2-135m" else (0, 1, 8):
        assert row(LABELS[name], shape, cards) in rows
