"""Facts read from a model directory; wrong ones are refused with the file's name."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from serving.engines.model_facts import ModelFacts, read_model_facts

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
CONFIG = {"vocab_size": 10, "max_position_embeddings": 32}


def write(directory: Path, config: object = CONFIG, largest: int = 9, added: int | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    tokenizer: dict[str, Any] = {"model": {"vocab": {"a": 0, "z": largest}}}
    if added is not None:
        tokenizer["added_tokens"] = [{"id": added, "content": "<end>"}]
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def test_the_shipped_model_is_read() -> None:
    assert read_model_facts(TINY) == ModelFacts(vocabulary=512, context_length=512, is_moe=False)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts", "n_routed_experts"])
@pytest.mark.parametrize(("experts", "is_moe"), [(8, True), (1, False), (0, False), (None, False)])
def test_a_mixture_is_a_model_with_several_experts(
    tmp_path: Path, name: str, experts: int | None, is_moe: bool
) -> None:
    assert read_model_facts(write(tmp_path, {**CONFIG, name: experts})).is_moe == is_moe


def test_a_model_of_several_kinds_is_known_by_its_text_part(tmp_path: Path) -> None:
    config = {"vocab_size": 3, "text_config": {**CONFIG, "num_experts": 4}}
    assert read_model_facts(write(tmp_path, config)) == ModelFacts(10, 32, is_moe=True)
    assert read_model_facts(write(tmp_path, {**CONFIG, "text_config": None})) == ModelFacts(10, 32, is_moe=False)


@pytest.mark.parametrize("field", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -1, "10", 1.5])
def test_a_field_that_is_no_count_is_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json: {field} is {value!r}"):
        read_model_facts(write(tmp_path, {**CONFIG, field: value}))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\ufffe"])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    (write(tmp_path) / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: "):
        read_model_facts(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {}}', '{"model": {"vocab": {"a": "b"}}}'])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    (write(tmp_path) / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: "):
        read_model_facts(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path) / name).unlink()
    with pytest.raises(ConfigError, match=name):
        read_model_facts(tmp_path)


def test_a_tokenizer_of_another_model_is_refused_by_its_file(tmp_path: Path) -> None:
    assert read_model_facts(write(tmp_path, largest=9, added=8)).vocabulary == 10
    for fields in ({"largest": 10}, {"largest": 9, "added": 10}):
        with pytest.raises(ConfigError, match=r"tokenizer\.json: it has token 10, and the model's vocab_size is 10"):
            read_model_facts(write(tmp_path, **fields))
