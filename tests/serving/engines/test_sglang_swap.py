"""The hot swap on a real SGLang server that is killed at each step, mislabelled, given damaged files, or hung.

The version that serves afterwards is as published, or none is reported as serving. Version 2 is whole, version 3 an
adapter upon the given model, of a rank that the server does not take, so that it is merged."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_world import MODEL, Published
from sglang_server import PYTHON, SglangServer

from core.errors import EngineUnavailable, WeightsError
from core.ids import ANCHOR, PolicyRef, base_ref
from core.model.beside import probe_path
from core.model.probes import agrees, get_probe
from core.settings import SglangSettings, SglangTimeoutSettings
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.engine import SglangEngine
from serving.engines.sglang.swap import NEXT, SwapStep, table

pytestmark = pytest.mark.timeout(900)  # servers start within, on whatever machine
TWO, THREE = base_ref(2), base_ref(3)
SETTINGS = SglangSettings(python=PYTHON, timeouts=SglangTimeoutSettings(admin_s=15.0, health_every_s=0.1, health_s=2.0))


class Killed(BaseException):
    """A kill, like a signal: nothing in the product catches it."""


class Watcher:
    """A recorder of steps, which runs a test's action before one of them."""

    def __init__(self) -> None:
        self.steps: list[SwapStep] = []
        self.before: dict[SwapStep, object] = {}

    def __call__(self, step: SwapStep, version: PolicyRef) -> None:
        self.steps.append(step)
        action = self.before.get(step)
        if action is not None:
            action()  # type: ignore[operator]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(tmp_path_factory.mktemp("swap"))
    made.publish(2, scale=1e-6)  # as near to the anchor as a small step of training
    made.publish_adapter(3, parent=2, rank=32, size=0.02)
    return made


@pytest.fixture
def server(tiny_sglang: SglangServer) -> SglangServer:
    return tiny_sglang


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def host_side(world: Published, server: SglangServer, directory: Path, watcher: Watcher) -> SglangEngine:
    engine = SglangEngine(
        "one", SETTINGS, world.weights, world.blobs, MODEL, directory, url=server.url, observe=watcher
    )
    for version in (ANCHOR, TWO, THREE):
        engine.load(world.refs[version])
    return engine


@pytest.fixture
def engine(world: Published, server: SglangServer, tmp_path: Path, watcher: Watcher) -> Iterator[SglangEngine]:
    made = host_side(world, server, tmp_path, watcher)
    made.switch(ANCHOR)
    watcher.steps.clear()
    yield made
    made.close()


def really_serves(world: Published, server: SglangServer, version: PolicyRef) -> bool:
    """Return whether the server has this version, asked directly, past the code under test."""
    admin = Admin(server.url, None, 60.0)
    try:
        record = get_probe(world.blobs, version)
        return bool(agrees(admin.score(record.token_ids), record, "float32"))
    finally:
        admin.close()


def test_the_steps_of_a_swap_are_those_of_the_table(engine: SglangEngine, watcher: Watcher) -> None:
    engine.switch(THREE)
    assert watcher.steps == [
        SwapStep.PAUSE,
        SwapStep.LOAD,
        SwapStep.COMPARE,
        SwapStep.FLUSH,
        SwapStep.RESUME,
        SwapStep.PROBE,
        SwapStep.SERVES,
    ]
    for step, after in zip(watcher.steps, watcher.steps[1:], strict=False):
        assert after == NEXT[step][0]
        assert f"| {step} | {after} |" in table()


@pytest.mark.parametrize(
    "step",
    [SwapStep.PAUSE, SwapStep.LOAD, SwapStep.COMPARE, SwapStep.FLUSH, SwapStep.RESUME, SwapStep.PROBE, SwapStep.SERVES],
)
def test_a_host_that_ends_at_any_step_is_followed_by_one_that_finishes(
    step: SwapStep, world: Published, server: SglangServer, engine: SglangEngine, watcher: Watcher, tmp_path: Path
) -> None:
    def die() -> None:
        raise Killed

    watcher.before[step] = die
    with pytest.raises(Killed):
        engine.switch(THREE)
    successor = host_side(world, server, tmp_path / "successor", Watcher())
    assert successor.serving() is None  # whatever the label says
    successor.switch(THREE)
    assert successor.serving() == THREE
    assert really_serves(world, server, THREE)
    successor.close()


def damage(path: Path) -> None:
    """Flip an exponent bit in the middle of the tensors, in a new file, since others may link to the old one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 // 4 * 4 + 3] ^= 0x40
    path.unlink()
    path.write_bytes(content)


def test_a_file_that_rots_after_it_was_verified_never_speaks(
    world: Published, server: SglangServer, engine: SglangEngine, watcher: Watcher, tmp_path: Path
) -> None:
    damage(tmp_path / "versions" / "00000003" / "model.safetensors")
    engine.switch(THREE)
    assert watcher.steps[:4] == [
        SwapStep.PAUSE,
        SwapStep.LOAD,
        SwapStep.COMPARE,
        SwapStep.RELOAD,
    ]  # before it was let go on
    assert watcher.steps[-1] == SwapStep.SERVES
    assert really_serves(world, server, THREE)


def test_what_cannot_be_loaded_at_all_leaves_the_last_good_version(
    world: Published, server: SglangServer, engine: SglangEngine, watcher: Watcher, tmp_path: Path
) -> None:
    file = tmp_path / "versions" / "00000003" / "model.safetensors"
    watcher.before[SwapStep.LOAD] = lambda: damage(file)
    watcher.before[SwapStep.RESTORE] = watcher.before.clear
    with pytest.raises(WeightsError, match="version 3"):
        engine.switch(THREE)
    assert SwapStep.RESTORE in watcher.steps
    assert SwapStep.RESUME not in watcher.steps[: watcher.steps.index(SwapStep.RESTORE)]
    assert engine.serving() == ANCHOR
    assert really_serves(world, server, ANCHOR)


def test_neighbours_at_a_small_learning_rate_are_told_apart(
    world: Published, server: SglangServer, engine: SglangEngine, watcher: Watcher, tmp_path: Path
) -> None:
    """Version 2 differs from the anchor by 1e-6, and anchor weights labelled as 2 are detected."""
    anchors = (tmp_path / "versions" / "00000001" / "model.safetensors").read_bytes()
    file = tmp_path / "versions" / "00000002" / "model.safetensors"

    def put_the_anchors() -> None:
        file.unlink()
        file.write_bytes(anchors)

    watcher.before[SwapStep.LOAD] = put_the_anchors
    watcher.before[SwapStep.RELOAD] = watcher.before.clear
    engine.switch(TWO)
    assert SwapStep.RELOAD in watcher.steps
    assert really_serves(world, server, TWO)


def test_a_version_whose_parent_was_discarded_serves(world: Published, engine: SglangEngine) -> None:
    """Its own probe says what it is; the parent's went with its weights."""
    path = probe_path(TWO)
    probe = world.blobs.get(path)
    world.blobs.delete(path)
    try:
        engine.switch(THREE)
        assert engine.serving() == THREE
    finally:
        world.blobs.put(path, probe)


def test_weights_that_somebody_else_put_are_not_taken_for_ours(
    world: Published, server: SglangServer, engine: SglangEngine, tmp_path: Path
) -> None:
    admin = Admin(server.url, None, 60.0)
    admin.load(tmp_path / "versions" / "00000003", "default", 0)
    admin.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.engines.sglang.engine._ASK_AGAIN_S", 0.0)
        assert engine.serving() is None
    engine.switch(ANCHOR)
    assert really_serves(world, server, ANCHOR)


def test_an_engine_that_hangs_is_away(server: SglangServer, engine: SglangEngine) -> None:
    os.killpg(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineUnavailable):
            engine.switch(THREE)
        assert engine.serving() is None
    finally:
        os.killpg(server.pid, signal.SIGCONT)
    engine.switch(THREE)
    assert engine.serving() == THREE
