"""Organisations on one real SGLang server: each with its adapters, in one batch, through swaps and a killed server."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import torch
from processes import words_of
from rescoring import all_turns, worst_difference_of
from safetensors.torch import load_file, save_file
from service_tree import Service, user, wait_for
from sglang_server import PYTHON, require_sglang

from core.errors import ConfigError, Conflict, WeightsError
from core.events import Completion, PolicyVersion
from core.ids import ANCHOR, PolicyName, PolicyRef, Version
from core.model.probes import get_probe, put_probe
from core.ports import AdapterConfig, WeightsRef
from core.settings import LoraSettings, SglangSettings
from learner.model.policy_model import PolicyModel
from learner.versions.loading import load_version
from learner.versions.probe import record
from onward.wiring.foundation import Foundation, open_foundation
from serving.engines.sglang.adapters.engine import AdapterEngine

pytestmark = pytest.mark.timeout(900)  # a server starts within, on whatever machine
NAMES = ("acme", "globex", "public")
TOML = f"""
[serving]
engine = "sglang"
[serving.sglang]
python = "{PYTHON}"
[serving.sglang.timeouts]
drain_s = 5.0
[serving.versions]
min_swap_interval_s = 0.0
[learner]
enabled = false
[learner.lora]
rank = 4
[release.canary]
enabled = "off"
[monitors]
enabled = false
[policies.acme]
namespaces = ["acme"]
[policies.globex]
namespaces = ["globex"]
""" + "".join(
    f'[[api.keys]]\nkey = "key-of-{name}"\nnamespace = "{name}"\nscopes = ["chat", "read", "operate"]\n'
    for name in NAMES
)
ASK = "[web] write total(xs): sum of xs"
ON_AND_ON = {"logit_bias": {"0": -100, "2": -100}}
AS_LIKELY_NATS = 1e-4
LOADED = {"given", "acme@3", "acme@4", "globex@2"}
"""On the server at the end: what serves, and what served before it, for a rollback."""


class Publisher:
    """A publisher of adapters with drawn matrices, as the learners of policies publish theirs."""

    def __init__(self, foundation: Foundation) -> None:
        self._foundation, self._policy = foundation, PolicyModel(foundation.model, "cpu")

    def publish(self, policy: str, size: float) -> PolicyRef:
        return self.announce(self.prepare(policy, size))

    def announce(self, made: PolicyVersion) -> PolicyRef:
        with self._foundation.store.work() as work:
            work.policies.put(made)
        return made.version

    def prepare(self, policy: str, size: float) -> PolicyVersion:
        """Publish a version that nobody is told of yet."""
        foundation = self._foundation
        with foundation.store.work() as work:
            version = work.policies.allocate(foundation.clock.now(), PolicyName(policy))
            given, parent = work.policies.get(ANCHOR), work.releases.live("local", PolicyName(policy))
        assert given is not None
        draw, tensors = torch.Generator().manual_seed(hash_of(version)), {}
        for shard in sorted(foundation.model.glob("*.safetensors")):
            for name, weight in load_file(shard).items():
                if name.endswith(("o_proj.weight", "v_proj.weight", "up_proj.weight")):  # parts of what is fused
                    outputs, inputs = weight.shape
                    module = name.removesuffix(".weight")
                    tensors[f"{module}.lora_A.weight"] = size * torch.randn(4, inputs, generator=draw)
                    tensors[f"{module}.lora_B.weight"] = size * torch.randn(outputs, 4, generator=draw)
        path = foundation.layout.root / "made.safetensors"
        save_file(tensors, path)
        adapter = AdapterConfig(base_digest=given.digest, rank=4, alpha=8.0)
        ref = foundation.weights.publish(version, [path], parent, adapter)
        load_version(self._policy, foundation.weights.open(ref))
        put_probe(foundation.blobs, version, record(self._policy, get_probe(foundation.blobs, ANCHOR), ref.digest))
        return PolicyVersion(
            version=version,
            policy=policy,
            digest=ref.digest,
            parent=parent,
            manifest=None,
            weights=ref.path,
            created_at=foundation.clock.now(),
        )


def hash_of(version: PolicyRef) -> int:
    return sum(map(ord, version.policy)) * 1000 + version.version


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    require_sglang()
    directory = tmp_path_factory.mktemp("organisations") / "service"
    directory.mkdir()
    (directory / "onward.toml").write_text(TOML)
    made = Service(directory, {})
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def foundation(service: Service) -> Iterator[Foundation]:
    made = open_foundation(service.directory)
    yield made
    made.close()


@pytest.fixture(scope="module")
def publisher(foundation: Foundation) -> Publisher:
    return Publisher(foundation)


def serves(service: Service, name: str, version: PolicyRef) -> bool:
    with httpx.Client(headers={"authorization": f"Bearer key-of-{name}"}, timeout=60) as http:
        return bool(http.get(f"{service.url}/v1/policies").json()["live"] == str(version))


async def answer(service: Service, name: str, max_tokens: int = 24, **fields: Any) -> str:
    """Return the inference id of the likeliest answer."""
    body = {"model": "onward-tiny", "messages": [user(ASK)], "temperature": 0, "max_tokens": max_tokens}
    headers = {"authorization": f"Bearer key-of-{name}"}
    async with httpx.AsyncClient(timeout=60) as http:
        told = await http.post(f"{service.url}/v1/chat/completions", json=body | fields, headers=headers)
    assert told.status_code == 200, told.text
    return str(told.json()["onward"]["inference_id"])


async def streamed(service: Service, name: str, begun: asyncio.Event, max_tokens: int, **fields: Any) -> str:
    """Return the inference id of the likeliest answer, and tell when its first words have come."""
    body = {"model": "onward-tiny", "messages": [user(ASK)], "temperature": 0, "max_tokens": max_tokens}
    headers = {"authorization": f"Bearer key-of-{name}"}
    url, body = f"{service.url}/v1/chat/completions", body | fields | {"stream": True}
    try:
        async with httpx.AsyncClient(timeout=60) as http, http.stream("POST", url, json=body, headers=headers) as told:
            assert told.status_code == 200
            async for line in told.aiter_lines():
                chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
                if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    begun.set()
            return str(told.headers["x-onward-inference-id"])
    finally:
        begun.set()  # also where it came to nothing


async def answers(service: Service, **fields: Any) -> list[str]:
    return await asyncio.gather(*(answer(service, name, **fields) for name in NAMES * 2))


def turns(foundation: Foundation, *ids: str) -> list[Completion]:
    def found() -> list[Completion] | None:
        by_id = {turn.inference_id: turn for turn in all_turns(foundation)}
        return [by_id[each] for each in ids] if by_id.keys() >= set(ids) else None  # type: ignore[index]

    return list(wait_for(found, what="the turns in the store"))


def versions_of(turn: Completion) -> set[str]:
    return {str(span.version) for span in turn.policy_versions}


def engine_of(service: Service) -> psutil.Process:
    hosts = [child for child in psutil.Process(service.pid).children() if "serve" in words_of(child)]
    return hosts[0].children()[0]


def url_of(service: Service) -> str:
    with httpx.Client(headers={"authorization": "Bearer key-of-public"}, timeout=60) as http:
        return str(http.get(f"{service.url}/v1/fleet").json()["data"][0]["url"])


def loaded(service: Service) -> set[str]:
    """Return the adapters on the server, asked directly."""
    models = httpx.get(f"{url_of(service)}/v1/models", timeout=60).json()["data"]
    return {model["id"] for model in models if model["parent"]}


def another_host(service: Service, foundation: Foundation, directory: Path, rank: int = 4) -> AdapterEngine:
    """Return an engine on the same server, as a host has it that takes over from one that ended."""
    settings, lora = SglangSettings(python=PYTHON), LoraSettings(rank=rank)
    weights, blobs, url = foundation.weights, foundation.blobs, url_of(service)
    return AdapterEngine("another", settings, lora, weights, blobs, foundation.model, directory, url=url)


def ref_of(made: PolicyVersion) -> WeightsRef:
    return WeightsRef(version=made.version, digest=made.digest, path=made.weights, parent=made.parent)


def test_what_one_asked_is_cached_for_itself_alone(service: Service) -> None:
    """Also while all of them are answered by the given model."""

    def cached(name: str) -> int:
        body = {"model": "onward-tiny", "messages": [user(f"{ASK}, as the customer wants it")], "max_tokens": 4}
        headers = {"authorization": f"Bearer key-of-{name}"}
        told = httpx.post(f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
        return int(told["usage"]["prompt_tokens_details"]["cached_tokens"])

    found = [cached(name) > 0 for name in ("acme", "acme", "globex", "public", "globex")]
    assert found == [False, True, False, False, True]


def test_answers_of_all_in_one_batch_are_each_its_own_models(
    service: Service, foundation: Foundation, publisher: Publisher
) -> None:
    first = turns(foundation, *asyncio.run(answers(service, temperature=1)))
    assert [versions_of(turn) for turn in first] == [{"acme@1"}, {"globex@1"}, {"1"}] * 2
    published = {name: publisher.publish(name, 0.1) for name in ("acme", "globex")}
    for name, version in published.items():
        wait_for(lambda name=name, version=version: serves(service, name, version), 60, f"{version} to serve")  # type: ignore[misc]
    second = turns(foundation, *asyncio.run(answers(service, temperature=1)))
    assert [versions_of(turn) for turn in second] == [{"acme@2"}, {"globex@2"}, {"1"}] * 2
    assert not any(turn.untrainable_reasons for turn in second)
    assert worst_difference_of(foundation, [*first, *second]) <= AS_LIKELY_NATS
    assert loaded(service) == {"given", "acme@2", "globex@2"}


def test_a_swap_of_one_changes_no_token_of_the_other_and_what_runs_ends_as_it_began(
    service: Service, foundation: Foundation, publisher: Publisher
) -> None:
    (before,) = turns(foundation, asyncio.run(answer(service, "globex", 300, **ON_AND_ON)))

    made = publisher.prepare("acme", 0.1)

    async def one_after_the_other(swapped: asyncio.Event) -> list[str]:
        given = list[str]()
        while not swapped.is_set():
            given.append(await answer(service, "globex", 300, **ON_AND_ON))
        return given

    async def through_a_swap() -> list[str]:
        swapped = asyncio.Event()
        others = asyncio.create_task(one_after_the_other(swapped))
        begun = asyncio.Event()
        running = asyncio.create_task(streamed(service, "acme", begun, 300, **ON_AND_ON))
        await begun.wait()
        version = await asyncio.to_thread(publisher.announce, made)
        await asyncio.to_thread(wait_for, lambda: serves(service, "acme", version), 60, "acme@3 to serve")
        swapped.set()
        return [await running, await answer(service, "acme"), *await others]

    begun, after, *through = turns(foundation, *asyncio.run(through_a_swap()))
    assert all(each.token_ids == before.token_ids for each in through), "one of them ran through the swap"
    assert versions_of(begun) == {"acme@2"}
    assert versions_of(after) == {"acme@3"}
    assert worst_difference_of(foundation, [begun, after, *through]) <= AS_LIKELY_NATS
    fourth = publisher.publish("acme", 0.1)
    wait_for(lambda: serves(service, "acme", fourth), 60, "acme@4 to serve")
    wait_for(lambda: loaded(service) == LOADED, 120, "the end of the one that no rollback would go to")


def test_what_answers_as_another_version_is_refused_and_leaves_the_server(
    service: Service, foundation: Foundation, publisher: Publisher, tmp_path: Path
) -> None:
    made = publisher.prepare("globex", 0.1)
    given = get_probe(foundation.blobs, ANCHOR)
    put_probe(foundation.blobs, made.version, msgspec.structs.replace(given, weights_digest=made.digest))
    with closing(another_host(service, foundation, tmp_path)) as host:
        with pytest.raises(WeightsError, match=f"version {made.version}: what the server computes with it is another"):
            host.load(ref_of(made))
        assert host.loaded() == {}
    assert loaded(service) == LOADED
    with (
        closing(another_host(service, foundation, tmp_path, rank=8)) as host,
        pytest.raises(ConfigError, match="start it with --enable-lora --max-lora-rank 8"),
    ):
        host.load(ref_of(made))


def test_a_killed_server_is_noticed_and_comes_back_with_all_of_them(
    service: Service, foundation: Foundation, tmp_path: Path
) -> None:
    globex, version = PolicyName("globex"), PolicyRef(PolicyName("globex"), Version(2))
    with foundation.store.look() as view:
        made = view.policies.get(version)
    assert made is not None
    before = turns(foundation, *asyncio.run(answers(service)))
    with closing(another_host(service, foundation, tmp_path)) as host:
        host.load(ref_of(made))
        assert loaded(service) == LOADED, "it takes over what is there"
        assert (host.serving(globex), host.pinnable()) == (None, {version})
        host.switch(version)
        assert host.serving(globex) == version
        with pytest.raises(Conflict, match="globex@2 serves"):
            host.unload(version)
        os.killpg(engine_of(service).pid, signal.SIGKILL)
        wait_for(lambda: host.serving(globex) is None, 60, "the other host to notice")
        assert host.loaded() == {}
    wait_for(lambda: back(service), 240, "its return")
    after = turns(foundation, *asyncio.run(answers(service)))
    assert [versions_of(turn) for turn in after] == [{"acme@4"}, {"globex@2"}, {"1"}] * 2
    assert [turn.token_ids for turn in after] == [turn.token_ids for turn in before]


def back(service: Service) -> bool:
    try:
        return loaded(service) == LOADED
    except httpx.HTTPError:
        return False
