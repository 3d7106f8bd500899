"""A disk that is full at any write of the learner: the file is named, nothing is lost, and nothing wrong is served.

The kernel refuses to let a file grow, as a full disk would (EFBIG for ENOSPC)."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from logged_world import World, lineage_of_newest, logged_past, open_world, settle

import learner.publishing
import learner.versions.version_files
from core.errors import WeightsError
from core.ids import base_ref
from learner.versions.journal import Journal
from learner.versions.manifest import prove_exactly_once

MakeWorld = Callable[[str], World]
WHERE: dict[str, Callable[[World], tuple[Any, str]]] = {
    "journal-00000003.msgpack.zst": lambda world: (Journal, "write"),
    "publishing/model.safetensors": lambda world: (learner.versions.version_files, "save_file"),
    "weights/00000003/model.safetensors": lambda world: (world.weights, "publish"),
    "weights/00000003/manifest.json": lambda world: (world.blobs, "put"),
    "probes/00000003": lambda world: (learner.publishing, "put_probe"),
}


@contextmanager
def full_disk(bound: int = 100) -> Iterator[None]:
    """Let no file grow beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the disk be full during the next call."""
    true = getattr(owner, name)

    def call(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with full_disk():
            return true(*given, **options)

    monkeypatch.setattr(owner, name, call)


def digests(world: World) -> list[str]:
    with world.store.look() as view:
        return [policy.digest for policy, _ in view.policies.newest(10)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    world = open_world(tmp_path_factory.mktemp("undisturbed"))
    one = world.learner()
    for seed in range(3):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    one.close()
    found = digests(world)
    world.close()
    return found


@pytest.mark.parametrize("file", WHERE)
def test_the_learner_ends_naming_the_file_and_another_completes_the_version(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, file: str, undisturbed: list[str]
) -> None:
    world = make_world("a")
    one = world.learner()
    world.tell(*logged_past(8))
    settle(one)
    world.tell(*logged_past(8, seed=1))
    fill_once(monkeypatch, *WHERE[file](world))
    with pytest.raises((OSError, WeightsError)) as failure:
        settle(one)
    assert file in str(failure.value)
    assert "File too large" in str(failure.value)
    one.close()
    with world.store.look() as view:
        assert view.policies.get(base_ref(3)) is None, "nobody is told of it"

    again = world.learner()
    settle(again)
    world.tell(*logged_past(8, seed=2))
    settle(again)
    again.close()
    assert digests(world) == undisturbed
    assert prove_exactly_once(lineage_of_newest(world)) == 24


def test_a_checkpoint_that_cannot_be_written_is_named_and_costs_nothing_else(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, undisturbed: list[str]
) -> None:
    world = make_world("a")
    one = world.learner()
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    for bound, file in ((1 << 20, "__0_0.distcp"), (100, "checkpoint-00000003")):
        with full_disk(bound):
            one._checkpointing.begin(None, one._backlog.applied)
            one._checkpointing.wait()
        assert "no checkpoint of version 3" in caplog.text
        assert file in caplog.text
        assert "File too large" in caplog.text
        assert not list((world.directory / "learner").glob("checkpoint-*")), "what was written makes room again"
        caplog.clear()
    world.tell(*logged_past(8, seed=2))
    settle(one)
    one.close()
    assert [path.name for path in (world.directory / "learner").glob("checkpoint-*")] == ["checkpoint-00000004"]
    assert digests(world) == undisturbed
