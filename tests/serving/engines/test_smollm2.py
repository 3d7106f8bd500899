"""SmolLM2 in both engines: tokens, log-probabilities, streams and a swap, compared with transformers in float32."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from engine_world import Published
from fleet_world import publish, sglang_fleet
from pretrained import smollm2
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from core.blobs import FsspecBlobs
from core.events import Sampling
from core.ids import ANCHOR, InferenceId, base_ref
from core.ports import AdapterConfig, GenerateRequest, Policy, TokenChunk
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
from serving.rendering import load_renderer
from serving.weights.published import BlobWeights

pytestmark = pytest.mark.timeout(900)  # loads a real model, and starts a real server
TWO = base_ref(2)
TOLERANCE = 1e-4
ASKED = "Write a Python function `total(xs)` that returns the sum of the list xs."


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompt() -> tuple[int, ...]:
    return load_renderer(smollm2()).render([{"role": "user", "content": ASKED}], ())


def asking(prompt: tuple[int, ...], **sampling: float) -> GenerateRequest:
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=prompt,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        stop_token_ids=(),
    )


async def collect(policy: Policy, request: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in policy.generate(request)]


@torch.inference_mode()
def worst(model: PreTrainedModel, request: GenerateRequest, chunks: list[TokenChunk]) -> float:
    """Return the largest difference of log-probabilities from those of a full forward pass."""
    said = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = torch.tensor([logprob for chunk in chunks for logprob in chunk.logprobs])
    ids = torch.tensor([[*request.prompt_token_ids, *said]])
    logits = model(ids).logits[0, len(request.prompt_token_ids) - 1 : -1] / (request.sampling.temperature or 1.0)
    own = logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]
    return float((own - logprobs).abs().max())


def greedy(model: PreTrainedModel, prompt: tuple[int, ...], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    return list(made[0, ids.shape[1] :].tolist())


# ------------------------------------------------------------------------------------ the engine within the process


class Adapted:
    """Blobs with the given model and an adapter upon it, in the shapes that a learner publishes."""

    def __init__(self, directory: Path, model: PreTrainedModel) -> None:
        self.weights = BlobWeights(FsspecBlobs(directory / "blobs"))
        self.given = self.weights.publish(ANCHOR, sorted(smollm2().glob("*.safetensors")), None)
        config = AdapterConfig(base_digest=self.given.digest, rank=4, alpha=8.0)
        draw = torch.Generator().manual_seed(0)
        self.scale = config.scale
        self.tensors: dict[str, torch.Tensor] = {}
        for name, module in model.named_modules():
            if name.endswith(("q_proj", "v_proj", "up_proj", "down_proj")):
                outputs, inputs = module.weight.shape  # type: ignore[union-attr]
                self.tensors[f"{name}.lora_A.weight"] = torch.randn(4, inputs, generator=draw) / inputs**0.5
                self.tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, 4, generator=draw) * 0.02
        file = directory / "adapter.safetensors"
        save_file(self.tensors, file)
        self.adapter = self.weights.publish(TWO, [file], ANCHOR, config)


@contextmanager
def merged(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], scale: float) -> Iterator[None]:
    """Add an adapter's matrices to a model for a while."""
    names = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    before = {name: model.get_parameter(f"{name}.weight").data for name in names}
    for name in names:
        delta = scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        model.get_parameter(f"{name}.weight").data = before[name] + delta
    yield
    for name, tensor in before.items():
        model.get_parameter(f"{name}.weight").data = tensor


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, model: PreTrainedModel) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"), model)


def test_the_engine_within_the_process_swaps_to_an_adapter_in_mid_answer(
    adapted: Adapted, model: PreTrainedModel, prompt: tuple[int, ...]
) -> None:
    settings = ServingSettings(local=LocalEngineSettings(slots=6), context_length=256)
    engine = LocalEngine(settings, smollm2(), adapted.weights, adapted.given)
    engine.start()
    with closing(engine):
        (first,) = asyncio.run(together(engine, [asking(prompt, temperature=0.0, max_tokens=12)]))
        assert [token for chunk in first for token in chunk.token_ids] == greedy(model, prompt, 12)
        engine.load(adapted.adapter)
        requests = [asking(prompt, temperature=0.7, max_tokens=24, seed=seed) for seed in range(4)]
        answers = asyncio.run(swapped(engine, requests))
        assert {chunk.version for chunks in answers for chunk in chunks} == {ANCHOR, TWO}
        for request, chunks in zip(requests, answers, strict=True):
            old, new = ([c for c in chunks if c.version == version] for version in (ANCHOR, TWO))
            assert worst(model, request, old) < TOLERANCE
            said = tuple(token for chunk in old for token in chunk.token_ids)
            later = asking((*prompt, *said), temperature=0.7)
            assert worst(model, later, new) > 10 * TOLERANCE, "the adapter changes what is computed"
            with merged(model, adapted.tensors, adapted.scale):
                assert worst(model, later, new) < TOLERANCE
        engine.switch(ANCHOR)
        (again,) = asyncio.run(together(engine, [asking(prompt, temperature=0.0, max_tokens=12)]))
        said = [[token for chunk in chunks for token in chunk.token_ids] for chunks in (first, again)]
        assert said[0] == said[1], "rolled back, to the bit"


async def together(policy: Policy, requests: list[GenerateRequest]) -> list[list[TokenChunk]]:
    return list(await asyncio.gather(*(collect(policy, request) for request in requests)))


async def swapped(engine: LocalEngine, requests: list[GenerateRequest]) -> list[list[TokenChunk]]:
    """Ask all at once, and switch once each has its first tokens."""
    streams: list[AsyncGenerator[TokenChunk, None]] = [engine.generate(request) for request in requests]
    begun = await asyncio.gather(*(_first(stream) for stream in streams))
    rest = [asyncio.ensure_future(_rest(stream)) for stream in streams]
    await asyncio.to_thread(engine.switch, TWO)
    return [first + await each for first, each in zip(begun, rest, strict=True)]


async def _first(stream: AsyncGenerator[TokenChunk, None]) -> list[TokenChunk]:
    return [await anext(stream) for _ in range(4)]


async def _rest(stream: AsyncGenerator[TokenChunk, None]) -> list[TokenChunk]:
    return [chunk async for chunk in stream]


# ---------------------------------------------------------------------------------------------------------- SGLang


def test_sglang_on_a_cpu_streams_exact_tokens_and_swaps_to_an_adapter(
    tmp_path: Path, model: PreTrainedModel, prompt: tuple[int, ...]
) -> None:
    with sglang_fleet(tmp_path, model=smollm2(), extra=("--max-total-tokens", "4096")) as fleet:
        first = asking(prompt, temperature=0.0, max_tokens=16)
        chunks = fleet.run(lambda policy: collect(policy, first))  # type: ignore[arg-type, return-value]
        assert len(chunks) > 4, "it streams"
        assert {chunk.version for chunk in chunks} == {ANCHOR}
        assert [token for chunk in chunks for token in chunk.token_ids] == greedy(model, prompt, 16)
        sampled = asking(prompt, temperature=0.7, max_tokens=16)
        assert worst(model, sampled, fleet.run(lambda policy: collect(policy, sampled))) < TOLERANCE  # type: ignore[arg-type, return-value]

        world: Published = fleet.world
        ref = world.publish_adapter(2, size=0.03)
        with fleet.store.work() as work:
            assert work.policies.allocate(fleet.clock.now()) == TWO
        publish(fleet.store, ref, "live")
        fleet.wait_until(lambda: any(replica.answers(TWO) for replica in fleet.view.snapshot.replicas))
        after = fleet.run(lambda policy: collect(policy, sampled))  # type: ignore[arg-type, return-value]
        assert {chunk.version for chunk in after} == {TWO}
        assert worst(model, sampled, after) > 10 * TOLERANCE
        opened = world.weights.open(ref)
        assert opened.adapter is not None
        with merged(model, load_file(opened.shards[0]), opened.adapter.scale):
            assert worst(model, sampled, after) < TOLERANCE
