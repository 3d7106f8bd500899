"""A tiny random model, its versions, whole answers of an engine that serves it, and a gate before its steps."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from core.blobs import FsspecBlobs
from core.events import Sampling
from core.ids import InferenceId, PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk, WeightsRef
from serving.engines.local import LocalEngine
from serving.engines.local.sequence import Sequence as Asked
from serving.weights.published import BlobWeights

CONTEXT = 160
VOCABULARY = 512


class World:
    """Versions published from seeds, and their stock models in transformers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model_dir = directory / "model"
        self.weights = BlobWeights(FsspecBlobs(directory / "blobs"))
        self.models: dict[PolicyRef, PreTrainedModel] = {}
        self.anchor = self.publish(1)
        self.models[base_ref(1)].save_pretrained(self.model_dir)

    def publish(self, version: int, change: Callable[[dict[str, Any]], None] | None = None) -> WeightsRef:
        """Publish a model drawn with `version` as its seed, with its tensors changed by `change`."""
        torch.manual_seed(version)
        config = Qwen3Config(
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            intermediate_size=384,
            vocab_size=VOCABULARY,
            tie_word_embeddings=True,
            max_position_embeddings=CONTEXT,
            initializer_range=0.08,
            bos_token_id=0,
            eos_token_id=None,
        )
        model = Qwen3ForCausalLM(config).eval()
        tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        if change is not None:
            change(tensors)
        path = self.directory / f"v{version}" / "model.safetensors"
        path.parent.mkdir()
        save_file(tensors, path)
        self.models[base_ref(version)] = model
        return self.weights.publish(base_ref(version), [path], base_ref(version - 1) if version > 1 else None)

    @torch.inference_mode()
    def score(self, version: int, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
        """Return log-probabilities [len(tokens) - 1] of tokens[1:], by the stock model in float32."""
        logits = self.models[base_ref(version)](torch.tensor([tokens])).logits[0, :-1].float() / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


class Answer:
    """A whole answer, its chunks in order."""

    def __init__(self, request: GenerateRequest, chunks: list[TokenChunk]) -> None:
        self.request = request
        self.chunks = chunks
        self.token_ids = [token for chunk in chunks for token in chunk.token_ids]
        self.logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
        self.versions = [chunk.version.version for chunk in chunks for _ in chunk.token_ids]
        self.finish_reason = chunks[-1].finish_reason
        self.cached_tokens = chunks[0].cached_tokens


def assert_exact(world: World, given: Answer, temperature: float = 1.0) -> None:
    """Assert that each token's log-probability is that of its version, over the full prefix."""
    tokens = [*given.request.prompt_token_ids, *given.token_ids]
    assert len(given.logprobs) == len(given.token_ids) == len(given.versions)
    scored = {version: world.score(version, tokens, temperature) for version in set(given.versions)}
    first = len(given.request.prompt_token_ids) - 1
    expected = torch.stack([scored[version][first + at] for at, version in enumerate(given.versions)])
    assert (expected - torch.tensor(given.logprobs)).abs().max() <= 1e-4


def request(
    prompt: list[int], *, stop: tuple[int, ...] = (), version: int | None = None, **fields: Any
) -> GenerateRequest:
    top_logprobs = fields.pop("top_logprobs", 0)
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**fields),
        stop_token_ids=stop,
        top_logprobs=top_logprobs,
        version=None if version is None else base_ref(version),
    )


async def answer(engine: LocalEngine, asked: GenerateRequest, on_chunk: Callable[[], None] = lambda: None) -> Answer:
    chunks = []
    async for chunk in engine.generate(asked):
        chunks.append(chunk)
        on_chunk()
    return Answer(asked, chunks)


def answers(engine: LocalEngine, *asked: GenerateRequest) -> list[Answer]:
    """Ask all requests at once."""

    async def gather() -> list[Answer]:
        return await asyncio.gather(*(answer(engine, each) for each in asked))

    return asyncio.run(gather())


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


async def until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # the condition belongs to another thread
            await asyncio.sleep(0.002)


class Gate:
    """Lets an engine say so many tokens, and no step begin beyond them until a test allows more.

    On a busy machine the engine's thread may end an answer before the test's event loop, or a thread that is to swap
    versions, does its next step. Whoever orders something of the engine while the gate is shut is served as ever."""

    def __init__(self, engine: LocalEngine, tokens: float, of: Callable[[Asked], bool] = lambda each: True) -> None:
        """Count the tokens of the requests that `of` chooses: while there are others, the gate stays open to all."""
        self._scheduler, self._allowed, self._of = engine._scheduler, tokens, of
        self._said = 0
        self._step, self._take = self._scheduler._step, self._scheduler._take
        self._scheduler._step, self._scheduler._take = self._step_if_open, self._count  # type: ignore[method-assign]

    def allow(self, tokens: float) -> None:
        """Let so many more be said."""
        self._allowed = self._said + tokens
        self._scheduler._wake.set()

    def open(self) -> None:
        self.allow(math.inf)

    async def shut(self) -> None:
        """Wait until all is said that was allowed."""
        await until(lambda: self._said >= self._allowed)

    async def asked(self, requests: int) -> None:
        """Wait until so many requests are there that no step has seen yet."""
        await until(lambda: len(self._scheduler._inbox) == requests)

    def _is_shut(self) -> bool:
        scheduler = self._scheduler
        asked = (*scheduler._running, *scheduler._waiting, *scheduler._inbox)
        return scheduler._open and self._said >= self._allowed and all(self._of(each) for each in asked)

    def _step_if_open(self) -> None:
        while self._is_shut():
            self._scheduler._wake.wait()
            self._scheduler._wake.clear()
            self._scheduler._run_commands()
        self._step()

    def _count(self, version: PolicyRef, group: Sequence[Asked], samples: Any) -> None:
        self._take(version, group, samples)
        self._said += sum(self._of(each) for each in group)
