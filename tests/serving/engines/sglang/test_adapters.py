"""Adapters by name on a scripted SGLang server: what is loaded when, what is unloaded, and what never serves."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engine_world import MODEL, Published
from weights_server import WeightsServer, weights_server

from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import ANCHOR, PolicyRef, base_ref
from core.model.probes import ProbeComparison
from core.ports import AdapterConfig
from core.settings import SglangSettings, SglangTimeoutSettings
from serving.engines.sglang.adapters import NamedAdapter, name_of, room_for
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.process import adapter_arguments

WHOLE, THREE, FOUR, FIVE = base_ref(2), base_ref(3), base_ref(4), base_ref(5)
SWAPS = {"/pause_generation", "/update_weights_from_disk", "/flush_cache", "/continue_generation"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("adapters"))
    made.publish(2)
    for version in (3, 4, 5):
        made.publish_adapter(version, parent=version - 1)
    return made


@pytest.fixture
def server(world: Published) -> Iterator[WeightsServer]:
    with weights_server(world.blobs) as made:
        made.most_adapters = 4
        yield made


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_ASK_AGAIN_S", "_LIST_AGAIN_S"):
        monkeypatch.setattr(f"serving.engines.sglang.engine.{pause}", 0.0)


Make = Callable[[str], SglangEngine]


@pytest.fixture
def host_of(world: Published, server: WeightsServer, tmp_path: Path) -> Iterator[Make]:
    made: list[SglangEngine] = []

    def make(directory: str) -> SglangEngine:
        settings = SglangSettings(device="cuda", timeouts=SglangTimeoutSettings(health_every_s=1e-6))
        place = tmp_path / directory
        made.append(SglangEngine("one", settings, world.weights, world.blobs, MODEL, place, url=server.url))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def engine(world: Published, host_of: Make) -> SglangEngine:
    """Return an engine on which version 3 serves."""
    made = host_of("host")
    serve(made, world, THREE)
    return made


def serve(engine: SglangEngine, world: Published, version: PolicyRef) -> None:
    engine.load(world.refs[version])
    engine.switch(version)
    assert engine.serving() == version


def names(world: Published, *versions: PolicyRef) -> set[str]:
    return {name_of(world.refs[version]) for version in versions}


def test_a_name_says_the_version_and_what_it_holds(world: Published, engine: SglangEngine) -> None:
    digest = world.refs[THREE].digest
    assert engine.names() == {THREE: f"onward-3-{digest[:12]}"}


def test_versions_come_and_go_without_a_pause(world: Published, engine: SglangEngine, server: WeightsServer) -> None:
    assert set(server.asked) >= SWAPS, "once, to put the model below them"
    server.asked.clear()
    for version in (FOUR, FIVE, THREE, ANCHOR, FOUR):
        engine.load(world.refs[version])
        engine.switch(version)
        assert engine.serving() == version
    assert not SWAPS & set(server.asked)
    assert engine.holds_many
    assert engine.pinnable() == {ANCHOR, THREE, FOUR, FIVE}, "what is loaded is there for a canary, too"


def test_a_loaded_adapter_is_pinnable_before_it_serves(world: Published, engine: SglangEngine) -> None:
    engine.load(world.refs[FOUR])
    assert FOUR in engine.pinnable()
    assert engine.what_is_wrong(FOUR) is None
    assert engine.serving() == THREE


def test_a_dropped_adapter_stays_until_no_request_runs(
    world: Published, engine: SglangEngine, server: WeightsServer
) -> None:
    server.running = 1
    serve(engine, world, FOUR)
    engine.unload(THREE)
    assert THREE not in engine.loaded()
    assert engine.serving() == FOUR
    assert set(server.adapters) == names(world, THREE, FOUR), "an answer may be under way"
    server.running = 0
    assert engine.serving() == FOUR
    assert set(server.adapters) == names(world, FOUR)
    with pytest.raises(Conflict):
        engine.unload(FOUR)
    with pytest.raises(Conflict, match="the model below the adapters"):
        engine.unload(ANCHOR)


def test_room_is_made_of_ours_alone(world: Published, engine: SglangEngine, server: WeightsServer) -> None:
    server.running = 1
    server.adapters["theirs"] = "/theirs"
    server.most_adapters = 3
    serve(engine, world, FOUR)
    engine.unload(THREE)
    engine._check_server()
    serve(engine, world, FIVE)
    assert set(server.adapters) == {"theirs"} | names(world, FOUR, FIVE)


def test_a_server_without_room_is_reported_and_others_adapters_stay(
    world: Published, engine: SglangEngine, server: WeightsServer
) -> None:
    server.adapters |= {"theirs": "/theirs", "onward-9-0123456789ab": "/of/another/host", "more": "/theirs"}
    before = dict(server.adapters)
    with pytest.raises(
        EngineUnavailable,
        match=r"no room for version 4: .* 4 adapters of at most 4, 3 of them not .*--max-loaded-loras",
    ):
        engine.load(world.refs[FOUR])
    assert server.adapters == before
    assert engine.serving() == THREE
    del server.adapters["more"]
    engine.load(world.refs[FOUR])
    assert FOUR in engine.pinnable()
    del server.adapters[engine.names()[FOUR]]
    server.adapters["more"] = "/theirs"
    with pytest.raises(EngineUnavailable, match="no room"):
        engine.switch(FOUR)
    assert engine.serving() == THREE


def test_an_adapter_that_others_pushed_out_is_loaded_again(
    world: Published, engine: SglangEngine, server: WeightsServer
) -> None:
    engine.load(world.refs[FOUR])
    del server.adapters[engine.names()[FOUR]]
    assert engine.serving() == THREE
    assert FOUR not in engine.loaded()
    assert FOUR not in engine.pinnable()
    engine.load(world.refs[FOUR])
    assert FOUR in engine.pinnable()
    del server.adapters[engine.names()[THREE]]
    assert engine.serving() is None
    serve(engine, world, THREE)


@pytest.mark.parametrize("label", ["default", "1"])
def test_a_server_that_was_started_again_is_given_all_again(
    world: Published, engine: SglangEngine, server: WeightsServer, label: str
) -> None:
    """And the model below is shown anew, whatever its label says."""
    engine.load(world.refs[FOUR])
    server.restart(label)
    assert engine.serving() is None
    assert engine.pinnable() == frozenset()
    assert engine.names() == {}
    server.asked.clear()
    engine.switch(THREE)
    assert engine.serving() == THREE
    assert "/weights_checker" in server.asked
    assert FOUR not in engine.loaded(), "so that its host loads it"
    engine.load(world.refs[FOUR])
    assert set(server.adapters) == names(world, THREE, FOUR)


def test_a_host_that_was_started_again_takes_over_what_is_there(
    world: Published, engine: SglangEngine, server: WeightsServer, host_of: Make
) -> None:
    """What it wants is proven again and not loaded again, and what nobody wants goes."""
    engine.load(world.refs[FOUR])
    server.asked.clear()
    successor = host_of("host")
    serve(successor, world, FOUR)
    assert "/load_lora_adapter" not in server.asked
    assert successor.serving() == FOUR
    assert set(server.adapters) == names(world, FOUR)


def test_a_server_that_answers_late_loses_nothing(
    world: Published, engine: SglangEngine, server: WeightsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, and serves on without a pause."""
    server.asked.clear()
    with monkeypatch.context() as patch:

        def late(*_: object) -> str:
            raise EngineUnavailable("late")

        patch.setattr(engine._admin, "label", late)
        assert engine.serving() is None
        with pytest.raises(EngineUnavailable):
            engine.switch(THREE)
    engine.switch(THREE)
    assert engine.serving() == THREE
    assert not SWAPS & set(server.asked)
    assert "/load_lora_adapter" not in server.asked


def test_a_torn_file_is_laid_out_once_more(
    world: Published, engine: SglangEngine, server: WeightsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out = engine._adapters.put

    def torn(*given: object) -> object:
        made = laid_out(*given)  # type: ignore[arg-type]
        (made.directory / "adapter_model.safetensors").write_bytes(b"torn")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(engine._adapters, "put", torn)
        with pytest.raises(WeightsError, match=r"SGLang did not load it: .*; loaded anew: .*SGLang did not load it"):
            engine.load(world.refs[FOUR])
        assert FOUR not in engine.loaded()
        assert set(server.adapters) == names(world, THREE)
    torn(world.refs[FOUR], world.weights.open(world.refs[FOUR]), engine._shelf.base)
    engine.load(world.refs[FOUR])
    assert FOUR in engine.pinnable()


@pytest.mark.parametrize("other", [ANCHOR, THREE], ids=["the model's own", "the parent's"])
@pytest.mark.parametrize("is_near", [False, True])
def test_an_adapter_that_answers_as_another_never_serves(
    world: Published,
    engine: SglangEngine,
    server: WeightsServer,
    monkeypatch: pytest.MonkeyPatch,
    other: PolicyRef,
    *,
    is_near: bool,
) -> None:
    """SGLang says that it loaded it, and computes nothing of it, or its parent: near ones are told apart, too."""
    server.answers_as[name_of(world.refs[FOUR])] = other
    if is_near:
        monkeypatch.setattr("serving.engines.sglang.engine.agrees", lambda *_: ProbeComparison(True, ""))
    why = f"its answers are those of version {other}" if is_near else "nats"
    with pytest.raises(WeightsError, match=rf"version 4: the engine loaded another adapter: .*{why}"):
        engine.load(world.refs[FOUR])
    assert set(server.adapters) == names(world, THREE)
    assert engine.serving() == THREE
    assert FOUR not in engine.pinnable()


def test_an_adapter_that_is_none_of_the_models_is_refused(world: Published, engine: SglangEngine) -> None:
    """One upon another base, and one whose matrices are of another rank than is said."""
    shards = list(world.weights.open(world.refs[FOUR]).shards)
    alien = AdapterConfig(base_digest="0" * 64, rank=4, alpha=8.0)
    ref = world.weights.publish(base_ref(21), shards, ANCHOR, alien)
    with pytest.raises(WeightsError, match="is an adapter upon weights 0000"):
        engine.load(ref)
    with pytest.raises(WeightsError, match="rank 2"):
        world.weights.publish(base_ref(22), shards, ANCHOR, AdapterConfig(base_digest="0" * 64, rank=2, alpha=8.0))
    assert engine.serving() == THREE


def test_whole_weights_take_the_server_for_themselves(
    world: Published, engine: SglangEngine, server: WeightsServer
) -> None:
    engine.load(world.refs[WHOLE])
    assert not engine.holds_many
    engine.switch(WHOLE)
    assert engine.pinnable() == {WHOLE}
    assert engine.names() == {}
    engine.load(world.refs[FOUR])
    engine.switch(FOUR)
    assert engine.pinnable() == {ANCHOR, THREE, FOUR}
    assert server.label == "1"


def test_a_server_without_lora_gets_merged_versions_and_the_log_says_why(
    world: Published, server: WeightsServer, host_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    server.most_adapters = None
    engine = host_of("merged")
    serve(engine, world, THREE)
    assert server.adapters == {}
    assert (engine.names(), engine.holds_many, engine.pinnable()) == ({}, False, {THREE})
    assert "version 3 is merged with the given model, and each swap to it pauses" in caplog.text
    assert "it was not started with --enable-lora" in caplog.text


def test_a_rank_beyond_the_servers_is_merged(
    world: Published, server: WeightsServer, host_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    engine = host_of("wide")
    ref = world.publish_adapter(6, rank=16)
    engine.load(ref)
    engine.switch(ref.version)
    assert (engine.serving(), engine.names()) == (ref.version, {})
    assert "its --max-lora-rank is 8, and the adapter's rank 16" in caplog.text


def test_a_server_is_started_with_what_the_learner_makes() -> None:
    room = room_for(MODEL, 16, ())
    assert room is not None
    assert (room.max_rank, room.max_loaded) == (16, 16)
    assert room.targets == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    only = room_for(MODEL, 4, ("q_proj", "self_attn.v_proj"))
    assert only is not None
    assert only.targets == {"q_proj", "v_proj"}
    assert room_for(MODEL, 0, ()) is None
    on_cpu, on_card = (adapter_arguments(only, device) for device in ("cpu", "cuda"))
    assert on_cpu == [*on_card, "--lora-backend", "torch_native"]
    assert " ".join(on_card).endswith("--max-lora-rank 4 --lora-target-modules q_proj v_proj --max-loaded-loras 16")


def test_adapters_are_held_before_the_server_is_started(world: Published, tmp_path: Path) -> None:
    settings = SglangSettings(python=Path(sys.executable))
    given = ("one", settings, world.weights, world.blobs, MODEL, tmp_path)
    with closing(SglangEngine(*given, url=None, room=room_for(MODEL, 8, ()))) as engine:
        engine.load(world.refs[THREE])
        assert engine.loaded().keys() == {THREE}
        assert engine.holds_many
        assert not any((tmp_path / "versions").iterdir()), "nothing is merged"


def test_a_server_that_unloads_nothing_is_asked_once(
    world: Published, engine: SglangEngine, server: WeightsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.most_adapters = 2
    engine._check_server()
    serve(engine, world, FOUR)
    server.running = 1  # or the dropped one goes at once
    engine.unload(THREE)
    asked: list[str] = []

    def keep(name: str, _: float | None = None) -> None:
        asked.append(name)
        assert len(asked) < 10, "it would be asked for ever"
        raise WeightsError("SGLang did not unload it")

    monkeypatch.setattr(engine._admin, "unload_adapter", keep)
    with pytest.raises(EngineUnavailable, match="no room for version 5"):
        engine.load(world.refs[FIVE])
    assert asked == [name_of(world.refs[THREE])]


def test_a_version_may_be_dropped_while_others_are_listed(
    world: Published, engine: SglangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's thread drops versions while its loader asks the server what it has."""
    engine.load(world.refs[FOUR])
    adapters = engine._adapters

    class DroppedMeanwhile(dict[PolicyRef, NamedAdapter]):
        def values(self) -> Iterator[NamedAdapter]:  # type: ignore[override]
            for each in super().values():
                adapters.drop(FOUR)
                yield each

    monkeypatch.setattr(adapters, "_held", DroppedMeanwhile(adapters.held()))
    adapters.refresh()
    adapters.refresh()


def test_an_unloaded_adapter_leaves_the_disk(world: Published, engine: SglangEngine, tmp_path: Path) -> None:
    """Its directory stays for as long as a request may have the server load it again."""

    def kept() -> set[str]:
        return {path.name for path in (tmp_path / "host" / "adapters").iterdir()}

    serve(engine, world, FOUR)
    engine.unload(THREE)
    assert kept() == names(world, THREE, FOUR)
    assert engine.serving() == FOUR
    assert kept() == names(world, FOUR)
