"""Matrices packed in half precision, and adapters beside them: the numbers are those of float32."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import SMALL, saved
from transformers import AutoModelForCausalLM, LlamaConfig

from core.blobs import FsspecBlobs
from core.ids import base_ref
from core.settings import ServingSettings
from serving.engines.local.attention import Row
from serving.engines.local.model import Decoder, load_decoder, slot_cache
from serving.engines.local.modules.products import Packed, Plain
from serving.engines.local.versions import PublishedLowRank, build_version
from serving.weights.published import BlobWeights

LARGE = SMALL | {"hidden_size": 512, "intermediate_size": 512, "vocab_size": 640}
TOKENS = list(range(3, 33))
BOUND = 5e-4  # of logits of about 10, each a sum of 512 products in another order, after layers of the same
TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a model that was trained in bfloat16, with biases."""
    directory = tmp_path_factory.mktemp("given")
    config = LlamaConfig(**LARGE, attention_bias=True, mlp_bias=True, tie_word_embeddings=request.param)
    saved(config, directory)
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).save_pretrained(directory)
    return directory


def version_of(template: Decoder, directory: Path, blobs: Path) -> Decoder:
    weights = BlobWeights(FsspecBlobs(blobs))
    ref = weights.publish(base_ref(1), sorted(directory.glob("*.safetensors")), None)
    return template.alike(build_version(template.model, weights.open(ref).shards, ref, as_stored=template.is_packed)[0])


def logits_of(decoder: Decoder, *, alone: bool = False) -> torch.Tensor:
    cache = slot_cache(decoder.model, 1, 40)
    whole = decoder.forward(cache, [Row(0, 0, len(TOKENS))], TOKENS, all_positions=True)
    if not alone:
        return whole
    steps = [decoder.forward(cache, [Row(0, at, at + 1)], [token]) for at, token in enumerate(TOKENS)]
    return torch.cat(steps)


@torch.inference_mode()
def expected(directory: Path, change: Callable[[torch.nn.Module], None] = lambda _: None) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    change(model)
    return model(torch.tensor([TOKENS])).logits[0]


def test_what_was_trained_in_bfloat16_is_packed_and_computes_the_same(given: Path, tmp_path: Path) -> None:
    template = load_decoder(given, ServingSettings())
    assert template.is_packed
    decoder = version_of(template, given, tmp_path)
    layer = decoder._lean._layers[0]
    assert {type(product) for product in layer._products.values()} == {Packed}
    assert type(decoder._lean._head) is Packed
    for alone in (False, True):
        torch.testing.assert_close(logits_of(decoder, alone=alone), expected(given), atol=BOUND, rtol=1e-5)
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in decoder.model.parameters()}
    assert sum(held.values()) < 100_000, "its modules hold norms and biases"


def test_weights_that_half_precision_does_not_hold_stay_as_they_are(given: Path, tmp_path: Path) -> None:
    """Versions whose every weight was trained, in float32."""
    fine = tmp_path / "fine"
    model = AutoModelForCausalLM.from_pretrained(given, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 1e-4)
    model.save_pretrained(fine)
    decoder = version_of(load_decoder(given, ServingSettings()), fine, tmp_path / "blobs")
    assert {type(product) for product in decoder._lean._layers[0]._products.values()} == {Plain}
    torch.testing.assert_close(logits_of(decoder), expected(fine), atol=BOUND, rtol=1e-5)
    assert (expected(fine) - expected(given)).abs().max() > 1e-3


def test_an_adapter_beside_is_the_sum_of_the_matrices(given: Path, tmp_path: Path) -> None:
    decoder = version_of(load_decoder(given, ServingSettings()), given, tmp_path)
    before, scale, draw = logits_of(decoder), 2.0, torch.Generator().manual_seed(1)
    changes = {}
    for name, module in AutoModelForCausalLM.from_pretrained(given).named_modules():
        if name.endswith(TARGETS):
            outputs, inputs = module.weight.shape
            a, b = torch.randn(4, inputs, generator=draw), torch.randn(outputs, 4, generator=draw)
            changes[f"{name}.weight"] = PublishedLowRank(a * 0.05, b * 0.05)

    def merge(model: torch.nn.Module) -> None:
        for name, change in changes.items():
            model.get_parameter(name).data += scale * change.b @ change.a

    assert decoder.takes(changes)
    adapted = decoder.adapted(changes, scale)
    for alone in (False, True):
        torch.testing.assert_close(logits_of(adapted, alone=alone), expected(given, merge), atol=BOUND, rtol=1e-5)
    assert (logits_of(adapted) - before).abs().max() > 0.1
    assert torch.equal(logits_of(decoder), before), "the base is as it was"
    assert not decoder.takes(changes | {"lm_head.weight": next(iter(changes.values()))})


def test_a_row_gives_the_same_whatever_is_beside_it() -> None:
    """To the bit on some processors; on others to the rounding of sums of 512 products, which come to 100."""
    draw = torch.Generator().manual_seed(2)
    product = Packed.of(torch.randn(512, 512, generator=draw).bfloat16().float(), None)
    x_NI = torch.randn(16, 512, generator=draw)
    whole = product(x_NI)
    assert all(float((product(x_NI[:rows]) - whole[:rows]).abs().max()) < 1e-3 for rows in range(1, 16))
