"""The arithmetic of a learner's memory, by shapes from a config and from files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.model.memory import (
    LearnerPlan,
    adapter_parameters,
    learner_bytes,
    parameters_of,
    shapes_by_config,
    shapes_in,
)

MODEL = Path(__file__).parents[3] / "models" / "tiny"
CONFIG = json.loads((MODEL / "config.json").read_text())
SHAPES = shapes_in([MODEL / "model.safetensors"])


def test_a_config_says_what_its_files_hold() -> None:
    assert shapes_by_config(CONFIG) == SHAPES


def test_an_output_matrix_of_its_own_is_counted() -> None:
    apart = shapes_by_config({**CONFIG, "tie_word_embeddings": False})
    assert parameters_of(apart) - parameters_of(SHAPES) == CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert adapter_parameters(apart, 4) == adapter_parameters(SHAPES, 4), "it has no adapter"


@pytest.mark.parametrize(
    ("changes", "named"), [({"num_experts": 8}, "num_experts"), ({"hidden_size": None}, "hidden_size")]
)
def test_a_config_that_does_not_say_it_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=named):
        shapes_by_config(config)


def test_adapters_by_hand() -> None:
    shapes = {"model.embed_tokens.weight": (10, 4), "model.layers.0.q.weight": (6, 4), "model.layers.0.n.weight": (4,)}
    assert parameters_of(shapes) == 68
    assert adapter_parameters(shapes, 2) == 2 * (6 + 4)
    found = learner_bytes(shapes, LearnerPlan(rank=2, positions=3))
    assert (found.weights, found.moments, found.gradients, found.anchor) == (2 * 68 + 80, 160, 80, 0)
    assert found.activations == 3 * 10 * 4
    assert found.total == 2 * 68 + 80 + 160 + 80 + 120


def test_all_weights_by_hand() -> None:
    shapes = {"model.embed_tokens.weight": (10, 4), "model.layers.0.q.weight": (6, 4), "model.layers.0.n.weight": (4,)}
    plan = LearnerPlan(positions=0)
    alone, unheld = learner_bytes(shapes, plan), learner_bytes(shapes, replace(plan, is_held=False))
    assert (alone.weights, alone.moments, alone.gradients, alone.anchor) == (272, 544, 272, 136)
    assert alone.total == 18 * 68
    assert unheld.total == 16 * 68
    shared = learner_bytes(shapes, replace(plan, cards=8))
    assert (shared.weights, shared.anchor, shared.gathered) == (34, 17, 4 * (40 + 2 * 28))
