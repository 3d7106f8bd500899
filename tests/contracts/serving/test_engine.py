"""The contract of the Engine port, run over the engine within the process, a small server, and a real SGLang server."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from engine_world import MODEL, Published
from http_engine import HttpEngine
from sglang_server import PYTHON, SglangServer, require_sglang
from token_server import token_server

from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import ANCHOR, PolicyRef, base_ref
from core.ports import Engine
from core.settings import LocalEngineSettings, ServingSettings, SglangSettings
from serving.engines.local import LocalEngine
from serving.engines.model_facts import read_model_facts
from serving.engines.sglang.adapters import room_for
from serving.engines.sglang.engine import SglangEngine

pytestmark = pytest.mark.timeout(900)  # servers start within, on whatever machine
TWO, THREE = base_ref(2), base_ref(3)


@contextmanager
def local(world: Published) -> Iterator[Engine]:
    settings = ServingSettings(local=LocalEngineSettings(slots=4))
    engine = LocalEngine(settings, MODEL, world.weights, world.refs[ANCHOR], blobs=world.blobs)
    engine.start()
    yield engine
    engine.close()


@contextmanager
def http(world: Published) -> Iterator[Engine]:
    with token_server(read_model_facts(MODEL).vocabulary) as url:
        engine = HttpEngine("http", url, world.weights, world.blobs, MODEL)
        yield engine
        engine.close()


@contextmanager
def sglang_of_another(world: Published, server: SglangServer) -> Iterator[Engine]:
    """Yield an engine on a server that somebody else started."""
    settings, directory = SglangSettings(python=PYTHON), world.directory / "host"
    engine = SglangEngine("one", settings, world.weights, world.blobs, MODEL, directory, url=server.url)
    yield engine
    engine.close()


@contextmanager
def sglang_of_its_own(world: Published) -> Iterator[Engine]:
    require_sglang()
    settings, directory = SglangSettings(python=PYTHON), world.directory / "host"
    room = room_for(MODEL, 8, ())
    engine = SglangEngine("two", settings, world.weights, world.blobs, MODEL, directory, url=None, room=room)
    yield engine
    engine.close()


def switch(engine: Engine, version: PolicyRef) -> None:
    """Switch as a host does: try again while the engine starts."""
    deadline_s = time.monotonic() + 600
    while True:
        try:
            return engine.switch(version)
        except EngineUnavailable:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("engine"))
    made.publish(2)
    made.publish(3)
    return made


@pytest.fixture(
    scope="module", params=[local, http, sglang_of_another, sglang_of_its_own], ids=lambda kind: kind.__name__
)
def engine(request: pytest.FixtureRequest, world: Published) -> Iterator[Engine]:
    kind: Callable[..., contextmanager[Engine]] = request.param  # type: ignore[type-arg]
    servers = [request.getfixturevalue("tiny_sglang")] if kind is sglang_of_another else []
    with kind(world, *servers) as made:
        load(made, world, ANCHOR)
        switch(made, ANCHOR)
        yield made


def load(engine: Engine, world: Published, *versions: PolicyRef) -> None:
    for version in versions:
        if version not in engine.loaded():
            engine.load(world.refs[version])


def test_what_is_loaded_is_told_by_digest(engine: Engine, world: Published) -> None:
    load(engine, world, TWO)
    assert engine.loaded()[TWO] == world.refs[TWO].digest


def test_loading_changes_nothing_that_serves(engine: Engine, world: Published) -> None:
    switch(engine, ANCHOR)
    load(engine, world, TWO, THREE)
    assert engine.serving() == ANCHOR


def test_a_switch_serves_and_back_again(engine: Engine, world: Published) -> None:
    load(engine, world, TWO)
    for version in (TWO, ANCHOR, TWO):
        switch(engine, version)
        assert engine.serving() == version
        assert version in engine.pinnable()


def test_the_probe_tells_figures_that_a_gate_can_use(engine: Engine, world: Published) -> None:
    load(engine, world, TWO)
    switch(engine, ANCHOR)
    figures = engine.probe(TWO)
    assert figures["finite"] == 1
    assert 0 < figures["kl_to_live"] < 1
    assert 0.1 < figures["entropy"] < 6


def test_what_serves_is_found_well_by_its_own_probe(engine: Engine, world: Published) -> None:
    load(engine, world, TWO)
    switch(engine, TWO)
    assert engine.what_is_wrong(TWO) is None


def test_what_serves_is_not_unloaded_and_the_rest_is(engine: Engine, world: Published) -> None:
    load(engine, world, TWO, THREE)
    switch(engine, TWO)
    with pytest.raises(Conflict):
        engine.unload(TWO)
    engine.unload(THREE)
    assert THREE not in engine.loaded()
    assert engine.serving() == TWO


@pytest.mark.parametrize("damage", ["nan", "missing", "shape", "unknown"])
def test_what_does_not_fit_is_refused_and_serving_goes_on(engine: Engine, world: Published, damage: str) -> None:
    switch(engine, ANCHOR)
    tensors = {name: value.float() for name, value in world.tensors().items()}
    name = "model.layers.1.mlp.down_proj.weight"
    match damage:
        case "nan":
            tensors[name][0, 0] = torch.nan
        case "missing":
            del tensors[name]
        case "shape":
            tensors[name] = tensors[name][:-1].clone()
        case "unknown":
            tensors["model.layers.9.mlp.down_proj.weight"] = tensors[name].clone()
    version = base_ref({"nan": 11, "missing": 12, "shape": 13, "unknown": 14}[damage])
    ref = world.weights.publish(version, world.shards(damage, tensors), ANCHOR)
    if damage == "nan" and isinstance(engine, LocalEngine):
        engine.load(ref)  # its probe says so, and the gate refuses it
        engine.unload(version)
    else:
        with pytest.raises(WeightsError, match=r"mlp\.down_proj\.weight"):
            engine.load(ref)
    assert version not in engine.loaded()
    assert engine.serving() == ANCHOR


def test_a_digest_that_is_another_is_refused(engine: Engine, world: Published) -> None:
    with pytest.raises(WeightsError):
        engine.load(msgspec.structs.replace(world.refs[THREE], version=base_ref(15), digest="0" * 64))
    assert base_ref(15) not in engine.loaded()
