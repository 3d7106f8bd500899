"""Fixtures; the modules beside this file are importable by name."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_world import World
from release_world import ReleaseWorld

from core.settings import ServingSettings
from serving.engines.local import LocalEngine


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def make_engine(world: World) -> Iterator[Callable[..., LocalEngine]]:
    engines: list[LocalEngine] = []

    def make(**settings: Any) -> LocalEngine:
        engine = LocalEngine(ServingSettings(**settings), world.model_dir, world.weights, world.anchor)
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def engine(world: World) -> Iterator[LocalEngine]:
    """Yield an engine for tests that leave it as it was."""
    engine = LocalEngine(ServingSettings(), world.model_dir, world.weights, world.anchor)
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., ReleaseWorld]]:
    worlds: list[ReleaseWorld] = []

    def make(
        *engines: str, kind: type[ReleaseWorld] = ReleaseWorld, like: Path | None = None, **settings: Any
    ) -> ReleaseWorld:
        """Return a world in which nothing runs yet; without `engines` it has the embedded one.

        `like` is a directory to copy."""
        directory = tmp_path / f"world-{len(worlds)}"
        if like is not None:
            shutil.copytree(like, directory)
        worlds.append(kind(directory, engines or ("local",), **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(scope="session")
def anchored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an anchor; copying it is quicker than making one."""
    world = ReleaseWorld(tmp_path_factory.mktemp("anchored") / "world")
    world.anchor()
    world.close()
    return world.directory


@pytest.fixture
def start_world(make_world: Callable[..., ReleaseWorld], anchored: Path) -> Callable[..., ReleaseWorld]:
    """Return a function that makes a world whose anchor serves."""

    def start(*engines: str, **settings: Any) -> ReleaseWorld:
        world = make_world(*engines, like=anchored, **settings)
        world.start()
        return world

    return start
