"""Decoders of plain modules: the same bits as of transformers' modules, compared once and after any change."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import SMALL, saved
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from core.errors import ConfigError
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local.attention import Row
from serving.engines.local.llama_forward import Rotary
from serving.engines.local.model import Decoder, load_decoder, slot_cache
from serving.engines.local.modules import comparison
from serving.engines.local.modules import given as given_modules
from serving.engines.local.modules.plain import PlainDecoder, PlainRotary, read_plain_config

BIASED = LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)
PLAIN = [LlamaConfig(**SMALL), BIASED, Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True)]
TOKENS = list(range(3, 33))


def logits_of(decoder: Decoder) -> torch.Tensor:
    return decoder.forward(slot_cache(decoder.model, 1, 40), [Row(0, 0, len(TOKENS))], TOKENS, all_positions=True)


@pytest.mark.parametrize("config", PLAIN, ids=["llama", "biased", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_modules_compute_the_same_bits(tmp_path: Path, config: PreTrainedConfig, dtype: str) -> None:
    saved(config, tmp_path)
    decoder = load_decoder(tmp_path, ServingSettings(local=LocalEngineSettings(dtype=dtype)))
    assert isinstance(decoder.model, PlainDecoder)
    given = given_modules.load_given(tmp_path, "cpu", getattr(torch, dtype))
    rotary = Rotary.of(given.base_model.rotary_emb, next(given.parameters()), decoder.rotary.cos_T1D.shape[0])
    assert torch.equal(logits_of(decoder), logits_of(Decoder(given, rotary)))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL),
        LlamaConfig(**SMALL, hidden_act="gelu"),
        LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=16, max_window_layers=1),
        LlamaConfig(**SMALL, something_new=2.0),
    ],
    ids=["kind", "activation", "rope", "window", "unknown"],
)
def test_a_config_that_is_not_known_in_every_field_has_no_plain_modules(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    config.save_pretrained(tmp_path)
    assert read_plain_config(tmp_path) is None


def with_another_norm(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 1e-5}))


def with_other_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", [None, with_another_norm, with_other_weights])
def test_the_comparison_is_made_again_only_when_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None] | None
) -> None:
    model, record, compared = tmp_path / "model", tmp_path / "record", []
    saved(PLAIN[0], model)
    load_decoder(model, ServingSettings(), record)
    before = record.read_text()
    own_logits = given_modules.own_logits
    monkeypatch.setattr(given_modules, "own_logits", lambda *given: compared.append(1) or own_logits(*given))
    if change is not None:
        change(model)
    load_decoder(model, ServingSettings(), record)
    assert bool(compared) == (change is not None)
    assert (record.read_text() == before) == (change is None)


def test_another_dtype_is_compared_again_and_a_spoilt_record_says_nothing(tmp_path: Path) -> None:
    model, record = tmp_path / "model", tmp_path / "record"
    saved(PLAIN[0], model)
    load_decoder(model, ServingSettings(local=LocalEngineSettings(dtype="bfloat16")), record)
    other = record.read_text()
    load_decoder(model, ServingSettings(), record)
    right = record.read_text()
    assert right != other
    record.write_bytes(b"\xff" + right.encode()[1:])
    load_decoder(model, ServingSettings(), record)
    assert record.read_text() == right


def test_plain_modules_that_compute_otherwise_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(self: PlainRotary, like: torch.Tensor, positions_1T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos_1TD, sin_1TD = angles(self, like, positions_1T)
        cos_1TD[:, -1] += 0.1  # of the last position alone: the tokens of the comparison do not get there
        return cos_1TD, sin_1TD

    angles = PlainRotary.forward
    monkeypatch.setattr(PlainRotary, "forward", turned)
    saved(PLAIN[0], tmp_path / "model")
    decoder = load_decoder(tmp_path / "model", ServingSettings(), tmp_path / "record")
    assert not isinstance(decoder.model, PlainDecoder)
    assert decoder.rotary is not None
    assert not (tmp_path / "record").exists()


def test_a_process_of_its_own_compares_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other, record = tmp_path / "model", tmp_path / "other", tmp_path / "record"
    saved(PLAIN[0], model)
    saved(MistralConfig(**SMALL), other)
    settings = ServingSettings(context_length=32)
    comparison.main(other, settings, record)
    assert not record.exists(), "it has no plain modules, and is compared where it is loaded"
    comparison.main(model, settings, record)
    monkeypatch.setattr(given_modules, "own_logits", lambda *_: pytest.fail("compared again"))
    assert isinstance(load_decoder(model, settings, record).model, PlainDecoder)


def test_names_in_a_config_change_nothing(tmp_path: Path) -> None:
    PLAIN[0].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    named = {"_model_name_or_path": "somewhere", "unk_token_id": 0, "pretraining_tp": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    assert read_plain_config(tmp_path) is not None


def test_weights_that_want_a_package_that_is_not_there_say_which(tmp_path: Path) -> None:
    saved(LlamaConfig(**SMALL), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"gptqmodel|optimum"):
        load_decoder(tmp_path, ServingSettings())


@pytest.mark.parametrize("layer_types", [5, [["full_attention"]], [{}], "full_attention"])
def test_layer_types_of_another_form_are_not_known_here(tmp_path: Path, layer_types: object) -> None:
    saved(LlamaConfig(**SMALL), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": layer_types}))
    assert read_plain_config(tmp_path) is None
