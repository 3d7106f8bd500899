"""Nothing gets out of a sandbox: every attempt is made, by a program inside, and judged from outside."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sandbox_kinds
from attempts import QUIET, Attempt
from sandboxed import PATIENCE_S, require_bubblewrap, shared_directory
from world import LIBRARY, World, attempt, escapes, world

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Limits, SandboxSpec

LIMITS = Limits(memory_bytes=128 << 20, disk_bytes=64 << 20, processes=32, output_bytes=200_000)


class Inside:
    """An open sandbox in a world, and the loop that it lives on."""

    def __init__(self, outside: World, root: Path | None) -> None:
        self.world, self.root = outside, root
        self._runner = asyncio.Runner()
        self._bubblewrap = Bubblewrap(shared_directory())
        self._spec = SandboxSpec(outside.workspace, root=root, folders=LIBRARY, limits=LIMITS)
        self._sandbox: BubblewrapSandbox | None = None

    def try_out(self, code: str) -> list[str]:
        return self._runner.run(self._try_out(code))

    async def _try_out(self, code: str) -> list[str]:
        if self._sandbox is None:
            self._sandbox = await self._bubblewrap.open(self._spec)
        before = self._image()
        result = await attempt(self._sandbox, code, self.world)
        assert self._image() == before, "the image was changed"
        assert result.exit_code in (0, 137, 143, 159), result  # 159: by the filter of calls
        return escapes(result, self.world)

    def _image(self) -> list[tuple[str, float]]:
        return sorted((str(path), path.lstat().st_mtime) for path in self.root.rglob("*")) if self.root else []

    def is_alive(self) -> bool:
        async def ask() -> bool:
            assert self._sandbox is not None
            return (
                await self._sandbox.run(["/bin/sh", "-c", "echo alive"], timeout_seconds=PATIENCE_S)
            ).stdout == b"alive\n"

        return self._runner.run(ask())

    def close(self) -> None:
        self._runner.run(self._bubblewrap.close())
        self._runner.close()


@pytest.fixture(scope="module", params=["programs of this machine", "image"])
def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("escapes")
    root = sandbox_kinds.image(folder).root if request.param == "image" else None
    (folder / "world").mkdir()
    with world(folder / "world") as outside, pytest.MonkeyPatch.context() as patched:
        patched.setenv("API_KEY", outside.token)
        made = Inside(outside, root)
        yield made
        made.close()


@pytest.mark.parametrize("way", QUIET, ids=lambda way: way.name)
def test_nobody_gets_out(inside: Inside, way: Attempt, record_property: Callable[[str, object], None]) -> None:
    if inside.root is not None and not way.over_images:
        return
    record_property("tried", way.wall)  # the benchmark counts them
    assert inside.try_out(way.code) == []
    assert inside.is_alive()


def test_the_attempts_are_many_and_distinct() -> None:
    assert len({replace(way, name="").code for way in QUIET}) == len({way.name for way in QUIET}) == len(QUIET)
    assert len(QUIET) >= 40
