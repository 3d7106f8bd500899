"""The host of an engine brings it from target to serving, whatever ends, hangs or is unreachable meanwhile."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_spans import kept_spans
from memory_engine import MemoryEngine
from mortal import Crash, Fuse
from release_world import ReleaseWorld
from stepping import step
from waiting import wait_for

from core import telemetry, tracing
from core.clock import SystemClock
from core.errors import EngineUnavailable, StoreUnavailable
from core.ids import PolicyRef, base_ref
from core.operations.fleet import ReplicaStatus, ReplicaTarget
from serving.engines.host import EngineHost, bring_up

MakeWorld = Callable[..., ReleaseWorld]
VERSIONS = range(1, 5)


@pytest.fixture(params=[True, False], ids=["many", "single"])
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> ReleaseWorld:
    """Return a world with three versions beside the anchor and no controller: tests write the targets."""
    world = make_world("local" if request.param else "one")
    world.anchor()
    for _ in VERSIONS[1:]:
        world.publish()
    world.start_engine(world.names[0])
    world.start_host(world.names[0])
    return world


def want(world: ReleaseWorld, serve: int, *hold: int, doubt: tuple[int, ...] = ()) -> None:
    target = ReplicaTarget(
        name=world.names[0],
        lane="live",
        serve=base_ref(serve),
        hold=tuple(base_ref(version) for version in sorted({serve, *hold})),
        doubt=tuple(map(base_ref, doubt)),
    )
    with world.store.work() as work:
        work.fleet.put_target("local", target)


def status(world: ReleaseWorld) -> ReplicaStatus:
    return world.statuses()[world.names[0]]


# ------------------------------------------------------------------------------------------------ what is wanted


@pytest.mark.parametrize("is_unfit", [False, True])
def test_an_engine_is_brought_up_once_it_serves_what_is_wanted(world: ReleaseWorld, is_unfit: bool) -> None:
    """The embedded one serves the first version from its start: users would be shown that until another is loaded."""
    engine = world.engines[world.names[0]]
    want(world, 3)
    if is_unfit:  # it will not be: then what there is serves
        engine.unfit.add(3)
    engine.may_load.clear()
    opening = threading.Timer(0.5, engine.may_load.set)
    opening.start()
    bring_up(world.hosts[world.names[0]])
    opening.join()
    assert engine.serves == (3 if not is_unfit else 1 if engine.holds_many else None)
    assert engine.loads == ([] if is_unfit else [3])


def test_without_a_word_from_anybody_the_live_version_serves(world: ReleaseWorld) -> None:
    """A host starts up even if no controller runs."""
    world.run(until=lambda: status(world).state == "ready")
    assert status(world).serving == 1
    assert world.targets() == {}


def test_before_anything_is_released_it_waits(make_world: MakeWorld) -> None:
    world = make_world("one")
    world.engines["one"] = MemoryEngine("one", world.weights, _nothing(world), many=False)
    step(world.start_host("one"), 0)
    assert (status(world).state, status(world).serving) == ("starting", None)
    assert world.hosts["one"].state == "starting: no version is released yet"


def test_what_is_to_be_held_is_verified_beside_what_serves(world: ReleaseWorld) -> None:
    want(world, 1, 2, 3)
    world.run()
    assert set(status(world).figures) == {1, 2, 3}
    assert status(world).pinnable == ((1, 2, 3) if world.engine.holds_many else (1,))
    assert world.engine.serves == 1
    want(world, 3, 1)
    world.run()
    assert world.engine.held == {1, 3}
    assert world.engine.loads.count(3) == 1
    assert world.engine.serves == 3


def test_loads_and_swaps_are_in_the_versions_trace(world: ReleaseWorld) -> None:
    want(world, 1)
    world.run()
    with kept_spans() as kept:
        want(world, 2)
        world.run()
        root = tracing.root_of_version(base_ref(2))
        assert [(span.name, span.parent) for span in kept.spans] == [("load", root), ("swap", root)]
    assert all(span.place.trace_id == root.trace_id for span in kept.spans)


def test_what_serves_comes_first(world: ReleaseWorld) -> None:
    want(world, 4, 2, 3)
    world.run()
    assert world.engine.loads[0] == 4


def test_what_was_refused_is_asked_again_when_it_is_wanted_again(world: ReleaseWorld) -> None:
    world.engine.unfit.add(2)
    want(world, 1, 2)
    world.run()
    assert status(world).refused == {2: f"{world.names[0]} cannot load version 2"}
    world.engine.unfit.clear()
    world.run()
    assert 2 in status(world).refused, "asked once"
    want(world, 1)
    world.run()
    assert status(world).refused == {}
    want(world, 2)
    world.run()
    assert world.engine.serves == 2


def test_a_version_that_nobody_published_is_refused(world: ReleaseWorld) -> None:
    want(world, 1, 9)
    world.run()
    assert status(world).refused == {9: "no version 9 is published"}
    assert status(world).state == "ready"


def test_what_is_not_verified_is_not_served(world: ReleaseWorld) -> None:
    """An unverified version may be loaded already, while its digest is still being compared."""
    world.run(until=lambda: status(world).state == "ready" and 1 in status(world).figures)  # the loader has done
    slow = threading.Event()
    probe = world.engine.probe

    def wait_and_probe(version: PolicyRef) -> Any:
        assert slow.wait(120)
        return probe(version)

    world.engine.probe = wait_and_probe  # type: ignore[method-assign]
    want(world, 2)
    world.run(until=lambda: 2 in world.engine.held)
    for _ in range(5):
        world.round()
    assert world.engine.serves == 1
    want(world, 1)
    for _ in range(5):
        world.round()
    assert 2 in world.engine.held, "nor taken from under the loader"
    slow.set()
    world.run(until=lambda: world.engine.held == {1})


def test_a_misread_version_is_refused_by_its_digest(world: ReleaseWorld) -> None:
    world.engine.misread.add(2)
    want(world, 2, 1)
    world.run()
    assert "loaded digest other, published" in status(world).refused[2]
    assert 2 not in world.engine.switches


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(wanted=st.lists(st.sets(st.sampled_from(VERSIONS), min_size=1), min_size=1, max_size=4), data=st.data())
def test_whatever_is_wanted_comes_about(world: ReleaseWorld, wanted: list[set[int]], data: st.DataObject) -> None:
    """The host starts from any state, and the target or the host itself may change half-way."""
    for versions in wanted:
        want(world, data.draw(st.sampled_from(sorted(versions))), *versions)
        if data.draw(st.booleans()):
            world.start_host(world.names[0])
        for _ in range(data.draw(st.integers(0, 3))):
            world.round()
    target = world.targets()[world.names[0]]
    world.run(
        until=lambda: (
            world.engine.held == set(target.hold)
            and world.engine.serves == status(world).serving == target.serve
            and status(world).state == "ready"
        )
    )


# ------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize("survives", [True, False])
def test_a_host_that_ends_anywhere_is_followed_by_one_that_goes_on(world: ReleaseWorld, survives: bool) -> None:
    """The host ends before each transaction, load, probe, switch and unload.

    The engine may be a server of its own, or end with its host."""
    name = world.names[0]
    for at in range(40):
        before, serve = (2, 3) if at % 2 else (3, 2)
        want(world, before, 1)
        world.run()
        fuse = Fuse(at)
        world.start_host(name, fuse)
        world.engine.fuse = fuse
        want(world, serve, 1, 4)
        try:
            world.run()
        except Crash:
            ended = True
        else:
            ended = False
        world.engine.fuse = Fuse()
        if ended:
            if not survives:
                world.start_engine(name)
            world.start_host(name)
            world.run()
        assert world.engine.serves == serve, at
        assert world.engine.held == {1, serve, 4}, at
        assert (status(world).state, status(world).refused) == ("ready", {}), at
        if not ended:
            break
    assert at >= 10


def test_an_engine_that_is_away_is_tried_again_in_good_time(world: ReleaseWorld) -> None:
    want(world, 1)
    world.run()
    world.engine.away = True
    want(world, 2)
    # Nobody else waits for the loader of an engine that is away, and a busy machine may not have let it try yet.
    world.run(until=lambda: status(world).detail != "")
    world.pass_time(3)
    calls = world.engine.fuse.calls
    assert (status(world).state, status(world).serving) == ("starting", None)
    assert status(world).detail == f"{world.names[0]} is away"
    assert status(world).refused == {}, "it may well serve it"
    for _ in range(20):
        world.round()
    assert world.engine.fuse.calls <= calls + 1, "not in every round"
    world.engine.away = False
    world.pass_time(2)
    assert (status(world).state, status(world).serving) == ("ready", 2)


def test_blobs_that_cannot_be_reached_are_asked_again_and_no_version_is_refused(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def unreachable(ref: object) -> None:
        asked.append(ref)
        raise OSError("weights/00000002: nothing answers")

    want(world, 1)
    world.run()
    with monkeypatch.context() as patch:
        patch.setattr(world.engine, "load", unreachable)
        want(world, 2)
        wait_for(lambda: world.pass_time(2) or len(asked) > 1)
        assert (status(world).serving, status(world).refused) == (1, {})
        assert status(world).detail == "weights/00000002: nothing answers"
    wait_for(lambda: world.pass_time(2) or status(world).serving == 2)
    wait_for(lambda: world.pass_time(2) or status(world).detail == "")


@pytest.mark.parametrize("asked", ["switch", "what_is_wrong"])
def test_blobs_that_a_switch_or_a_probe_needs_may_be_out_of_reach(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def unreachable(_: object) -> None:
        raise OSError("probes/00000002: nothing answers")

    want(world, 1)
    world.run()
    with monkeypatch.context() as patch:
        patch.setattr(world.engine, asked, unreachable)
        want(world, 2 if asked == "switch" else 1, doubt=() if asked == "switch" else (1,))
        for _ in range(3):
            world.pass_time(2)
        assert (status(world).serving, status(world).refused) == (1, {})
    want(world, 2)
    wait_for(lambda: world.pass_time(2) or status(world).serving == 2)


def test_an_engine_that_is_away_leaves_few_versions_that_nobody_wants(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take as much of the disk as the model, and others come for as long as it is away."""

    def away(_: PolicyRef) -> None:
        raise EngineUnavailable("it starts")

    monkeypatch.setattr(world.engine, "_live", None)
    monkeypatch.setattr(world.engine, "switch", away)
    for version in VERSIONS:
        want(world, version)
        wait_for(lambda version=version: world.pass_time(2) or version in world.engine.held)  # type: ignore[misc]
    wait_for(lambda: world.pass_time(2) or world.engine.held == {2, 3, 4})
    world.pass_time(5)
    assert world.engine.held == {2, 3, 4}, "it may come back on one of the newest"


def test_while_the_store_is_away_the_engine_serves_on(world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    want(world, 2)
    world.run()
    host = world.hosts[world.names[0]]

    def gone() -> Iterator[None]:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(host._store, "read", gone)
        assert step(host, 0) == 0
    assert world.engine.serves == 2
    want(world, 3)
    world.run()
    assert world.engine.serves == 3


def test_a_host_that_drains_says_so_and_one_that_closes_is_forgotten(world: ReleaseWorld) -> None:
    want(world, 1)
    world.run()
    host = world.hosts[world.names[0]]
    host.drain()
    step(host, 0)
    assert (status(world).state, status(world).serving) == ("draining", 1)
    host.close()
    assert (world.statuses(), world.targets()) == ({}, {})


# ------------------------------------------------------------------------------------------------ what is said


def test_the_seconds_of_a_candidates_probe_are_counted(world: ReleaseWorld) -> None:
    want(world, 1)
    world.run()
    probe, before = world.engine.probe, telemetry.PROBE_SECONDS._value.get()

    def probe_for_long(version: PolicyRef) -> Any:
        world.clock.advance(0.5)
        return probe(version)

    world.engine.probe = probe_for_long  # type: ignore[method-assign]
    want(world, 1, 2)
    world.run()
    assert telemetry.PROBE_SECONDS._value.get() - before == pytest.approx(0.5)


def test_it_speaks_when_something_changed_and_once_in_a_heartbeat(world: ReleaseWorld) -> None:
    heard: list[str] = []
    host = world.hosts[world.names[0]]
    host.on_change = lambda: heard.append("change")
    want(world, 1)
    world.run()
    beats, changes = status(world).heartbeat_at, len(heard)
    assert changes > 0
    for _ in range(5):
        step(host, 0)
    assert status(world).heartbeat_at == beats
    world.clock.advance(1.1)
    step(host, 0)
    assert status(world).heartbeat_at == world.clock.now()
    assert len(heard) == changes, "a heartbeat is no change"


@pytest.mark.parametrize("slow", ["load", "switch"])
def test_the_heart_beats_while_the_engine_is_slow(make_world: MakeWorld, slow: str) -> None:
    world = make_world("one", clock=SystemClock())
    world.anchor()
    world.publish()
    world.start_engine("one")
    world.hosts["one"] = host = EngineHost(world.engine, world.store, "local", world.clock, heartbeat_s=0.01)
    world.run(until=lambda: status(world).state == "ready")
    act, begun, go_on = getattr(world.engine, slow), threading.Event(), threading.Event()

    def slowly(argument: Any) -> None:
        begun.set()
        assert go_on.wait(120)
        act(argument)

    setattr(world.engine, slow, slowly)
    want(world, 2)
    over = threading.Event()
    thread = threading.Thread(target=lambda: [step(host, 0.01) for _ in iter(over.is_set, True)])
    thread.start()
    try:
        assert begun.wait(120)
        beats: set[Any] = set()
        wait_for(lambda: beats.add(status(world).heartbeat_at) or len(beats) > 3)
        assert status(world).state == ("ready" if slow == "load" else "swapping")
        go_on.set()
        wait_for(lambda: status(world).serving == 2)
    finally:
        go_on.set()
        over.set()
        thread.join(120)


def test_a_wake_is_not_waited_for(world: ReleaseWorld) -> None:
    host = EngineHost(world.engine, world.store, "local", world.clock, poll_s=3600.0)
    while step(host, 0.01):
        pass
    host.wake()
    round_ = threading.Thread(target=step, args=(host, 3600.0), daemon=True)
    round_.start()
    round_.join(120)
    assert not round_.is_alive()


def _nothing(world: ReleaseWorld) -> Any:
    from core.ports import WeightsRef

    return WeightsRef(version=base_ref(1), digest="", path=str(Path()))
