"""Adapters by name on a real SGLang server: versions come while answers run, and each answer is of one of them."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import cast

import pytest
import torch
from engine_world import MODEL, Published
from fleet_world import PATIENT, Fleet, publish
from safetensors.torch import load_file
from sglang_server import PYTHON, SglangServer, require_sglang
from transformers import AutoModelForCausalLM

from core.errors import EngineUnavailable, WeightsError
from core.events import Sampling
from core.ids import ANCHOR, InferenceId, PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk
from core.settings import ServingSettings, SglangSettings
from serving.engines.sglang.adapters import room_for
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.swap import SwapStep

pytestmark = pytest.mark.timeout(900)  # servers start within, on whatever machine
TWO, THREE, FOUR, FIVE = (base_ref(number) for number in (2, 3, 4, 5))
PROMPT, LENGTH = tuple(range(3, 40)), 150
SETTINGS = SglangSettings(python=PYTHON)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("by_name"))
    for version in (2, 3, 4, 5):
        made.publish_adapter(version, parent=version - 1, size=0.1)
    return made


class Watched:
    """A fleet of one server, and the steps of its swaps."""

    def __init__(self, directory: Path, world: Published, server: SglangServer) -> None:
        self.steps: list[SwapStep] = []
        self.fleet = Fleet(directory, world, ServingSettings(sglang=SETTINGS, fleet=PATIENT))
        self.fleet.host(
            SglangEngine(
                *("one", SETTINGS, world.weights, world.blobs, MODEL, directory / "host"),
                url=server.url,
                observe=lambda step, _: self.steps.append(step),
            )
        )
        self.fleet.wait_until(lambda: self.serving() == ANCHOR)

    def serving(self) -> PolicyRef | None:
        replicas = self.fleet.view.snapshot.replicas
        return replicas[0].serving if replicas else None

    def release(self, version: PolicyRef) -> None:
        publish(self.fleet.store, self.fleet.world.refs[version], "live")


@pytest.fixture
def watched(tmp_path: Path, world: Published, tiny_sglang: SglangServer) -> Iterator[Watched]:
    made = Watched(tmp_path, world, tiny_sglang)
    with closing(made.fleet):
        yield made


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: set[PolicyRef] = set()
        self.is_whole = self.is_certain = False

    def take(self, chunk: TokenChunk) -> None:
        self.tokens += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions |= {chunk.version, *(span.version for span in chunk.version_spans or ())}
        self.is_whole, self.is_certain = chunk.finish_reason == "length", chunk.confirmed

    @property
    def version(self) -> PolicyRef:
        (only,) = self.versions
        return only


def rescored(world: Published, answer: Answer) -> list[float]:
    """Return what transformers says of an answer's tokens, with the adapter added to the weights."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    opened = world.weights.open(world.refs[answer.version])
    assert opened.adapter is not None
    (shard,) = opened.shards
    tensors = load_file(shard)
    with torch.no_grad():
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            module = name.removesuffix(".lora_A.weight")
            change = tensors[f"{module}.lora_B.weight"] @ tensors[name]
            model.get_submodule(module).weight += opened.adapter.scale * change
        ids = torch.tensor([[*PROMPT, *answer.tokens]])
        logprobs = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return cast("list[float]", logprobs.gather(1, ids[0, len(PROMPT) :, None])[:, 0].tolist())


def test_versions_come_while_answers_run_and_each_answer_is_of_one(watched: Watched, world: Published) -> None:
    """The same prompt is asked all the time, so that prefixes of another version would be at hand."""
    answers: list[Answer] = []
    outlived: list[PolicyRef] = []  # versions whose answers went on when another one served
    is_over = asyncio.Event()

    async def ask_on() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            request = GenerateRequest(
                inference_id=InferenceId(f"{number}"),
                prompt_token_ids=PROMPT,
                sampling=Sampling(max_tokens=LENGTH),
                stop_token_ids=(),
            )
            answer = Answer()
            async with aclosing(watched.fleet.policy.generate(request)) as stream:
                async for chunk in stream:
                    answer.take(chunk)
                    others = {watched.serving()} - answer.versions - {None}
                    if others and answer.versions:
                        outlived.extend(answer.versions)
            answers.append(answer)

    async def release_all(_: object) -> None:
        clients = [asyncio.create_task(ask_on()) for _ in range(3)]
        try:
            for version in (TWO, THREE, FOUR):
                watched.release(version)
                async with asyncio.timeout(600):
                    while not any(version in answer.versions for answer in answers):
                        assert not any(client.done() for client in clients)
                        await asyncio.sleep(0.01)
        finally:
            is_over.set()
            await asyncio.gather(*clients)

    watched.steps.clear()
    watched.fleet.run(release_all)  # type: ignore[arg-type]
    assert watched.steps == [], "nothing is paused, loaded whole or flushed"
    assert all(answer.is_whole and answer.is_certain and len(answer.tokens) == LENGTH for answer in answers)
    assert {answer.version for answer in answers} >= {TWO, THREE, FOUR}
    assert set(outlived) & {TWO, THREE}, "an answer ends under the version that it began with"
    for version in (TWO, THREE, FOUR):
        for answer in [answer for answer in answers if answer.version == version][:2]:
            assert answer.logprobs == pytest.approx(rescored(world, answer), rel=1e-4, abs=1e-4)


def test_a_torn_adapter_never_serves(
    world: Published, tiny_sglang: SglangServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one that the server, which other tests use as well, was never given."""
    engine = SglangEngine("one", SETTINGS, world.weights, world.blobs, MODEL, tmp_path, url=tiny_sglang.url)
    with closing(engine):
        engine.load(world.refs[THREE])
        engine.switch(THREE)
        laid_out = engine._adapters.put

        def torn(*given: object) -> object:
            made = laid_out(*given)  # type: ignore[arg-type]
            file = made.directory / "adapter_model.safetensors"
            file.write_bytes(file.read_bytes()[:-4096])
            return made

        with monkeypatch.context() as patch:
            patch.setattr(engine._adapters, "put", torn)
            with pytest.raises(WeightsError, match="SGLang did not load it"):
                engine.load(world.refs[FIVE])
        assert FIVE not in engine.loaded()
        assert engine.serving() == THREE
        engine.load(world.refs[FIVE])
        assert engine.pinnable() >= {THREE, FIVE}


def test_a_started_server_that_dies_gets_its_adapters_again(world: Published, tmp_path: Path) -> None:
    require_sglang()
    room = room_for(MODEL, 8, ())
    engine = SglangEngine("two", SETTINGS, world.weights, world.blobs, MODEL, tmp_path, url=None, room=room)

    def serve() -> None:
        while engine.serving() != THREE:
            with suppress(EngineUnavailable):  # it starts
                engine.switch(THREE)

    with closing(engine):
        engine.load(world.refs[THREE])
        engine.load(world.refs[FOUR])
        serve()
        assert engine._process is not None
        engine._process.kill()
        serve()
        assert engine.names().keys() == {THREE}
        engine.load(world.refs[FOUR])
        assert engine.names().keys() == {THREE, FOUR}
        assert engine.what_is_wrong(FOUR) is None
