"""Files with several names (hard links) reach whoever judges as plain files, and archives of agents do no harm."""

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S
from task_folders import prepared, write_task

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.artifacts import _unpack
from environments.tasks.opening import open_sandbox
from environments.tasks.verifying import verify

SETTINGS = """
artifacts = [{ source = "/app/folder", exclude = ["*.tmp"] }]
[verifier]
environment_mode = "separate"
"""
MIB = 1 << 20


def told(folder: Path, images: Path, work: str = "true") -> list[str]:
    """Return the words that a task's tests said of what a script left behind."""

    async def run() -> list[str]:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            task = await prepared(folder, images)
            async with await open_sandbox(task, sandboxes) as sandbox:
                result = await sandbox.run(("sh", "-c", work), timeout_seconds=PATIENCE_S)
                assert result.exit_code == 0, result
                return (await verify(task, sandbox, sandboxes)).output.split()
        finally:
            await sandboxes.close()

    return asyncio.run(run())


def test_each_name_of_an_artifact_arrives_as_a_file_of_its_own(tmp_path: Path, images: Path) -> None:
    """`t` is a second name of a symbolic link, and left out as that is."""
    work = "mkdir folder; cd folder; echo same >a; ln a b; ln a c.tmp; mkdir d; ln a d/e; ln -s /etc/passwd s; ln s t"
    tests = "#!/bin/sh\ncd folder; ls; cat b d/e; echo more >>b; cat a; echo 1 >/logs/verifier/reward.txt\n"
    folder = write_task(tmp_path / "t", SETTINGS, tests=tests)
    assert told(folder, images, work) == ["a", "b", "d", "same", "same", "same"]


def test_tests_with_several_names_are_copied_in(tmp_path: Path, images: Path) -> None:
    tests = "#!/bin/sh\ncat /tests/1 /tests/2; echo 1 >/logs/verifier/reward.txt\n"
    folder = write_task(tmp_path / "t", tests=tests, files={"tests/1": "same\n"})
    (folder / "tests" / "2").hardlink_to(folder / "tests" / "1")
    assert told(folder, images) == ["same", "same"]


def archive(*members: tuple[str, str | int]) -> bytes:
    """Return an archive of files of so many bytes, and of links to a name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as to:
        for name, what in members:
            member = tarfile.TarInfo(f"./app/{name}")
            if isinstance(what, str):
                member.type, member.linkname = tarfile.LNKTYPE, what
            else:
                member.size = what
            to.addfile(member, io.BytesIO(bytes(member.size)) if member.size > 0 else None)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (archive(("link", "./app/nothing")), "not packed before it"),
        (archive(("link", "./app/file"), ("file", 1)), "not packed before it"),
        (archive(("link", "./app/link")), "not packed before it"),
        (archive(("link", "/etc/passwd")), "not packed before it"),
        (archive(("../etc/passwd", 1), ("link", "./app/../etc/passwd")), "not packed before it"),
        (archive(("0", 20 * MIB), *((str(n), "./app/0") for n in range(1, 5))), "more than 67108864 bytes"),
        (archive(("a/" * 300, 1)), "lie in one another"),
        (archive(("first", 0), ("file", -512)), "smaller than nothing"),
        (archive(("first", 0), ("../elsewhere", -512)), "smaller than nothing"),
    ],
)
def test_an_archive_that_no_tar_writes_or_that_grows_too_large_is_refused(
    tmp_path: Path, packed: bytes, why: str
) -> None:
    with pytest.raises(tarfile.TarError, match=why):
        _unpack(packed, "/app", tmp_path)
