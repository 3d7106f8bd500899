"""Carries what an agent made to the sandbox of a verifier that trusts nothing else of the agent's.

The agent was root in its own sandbox, so the archive is taken for hostile: of it, only plain files and folders below
the stated places get across, and no symbolic link. Each name of a file that has several (hard links) gets across as a
plain file of its own."""

import errno
import io
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from environments.errors import OF_THIS_MACHINE, NoVerdict, no_verdict_where
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Artifact

_PACKED = "/tmp/.artifact.tar"
_TIMEOUT_SECONDS = 120.0
_MOST_FOLDERS = 100  # in one another: what removes them again calls itself for each
_MOST_LINKED_BYTES = 64 << 20  # 131,072 links to one large file fit into an archive of 64 MiB
_OF_THIS_MACHINE = (*OF_THIS_MACHINE, errno.ENOSPC, errno.EDQUOT)  # where it unpacks


async def carry(artifacts: Sequence[Artifact], source: Sandbox, target: Sandbox) -> None:
    """Copy artifacts to the same places; one that the agent did not make is left out, which is for the tests to see.

    Raises NoVerdict where what is there cannot be packed."""
    for artifact in artifacts:
        archive = await _packed(artifact, source)
        if archive is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder)
            try:
                is_folder = _unpack(archive, artifact.source, unpacked)
            except (tarfile.TarError, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE:
                    raise
                raise NoVerdict(f"{artifact.source} is packed wrongly: {error}") from error
            await _put(unpacked, artifact.source, target, is_folder=is_folder)


async def _put(unpacked: Path, source: str, target: Sandbox, *, is_folder: bool) -> None:
    file = unpacked / "file"
    content = file.read_bytes() if not is_folder and file.exists() else None
    with no_verdict_where(f"{source} could not be put into the verifier's sandbox"):
        if is_folder:
            await target.copy_in(unpacked, source)
        elif content is not None:
            await target.write(source, content)


async def _packed(artifact: Artifact, source: Sandbox) -> bytes | None:
    """Return the archive of one artifact, None where it is not there."""
    place, inside = shlex.quote(artifact.source), shlex.quote(f".{artifact.source}")
    excluded = " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in artifact.exclude)
    script = f"rm -rf {_PACKED}; [ -e {place} ] || exit 3; exec tar -c -f {_PACKED} {excluded} -C / -- {inside}"
    result = await source.run(("/bin/sh", "-c", script), timeout_seconds=_TIMEOUT_SECONDS, workdir="/")
    if result.exit_code == 3:
        return None
    if result.exit_code != 0 or result.timed_out:
        said = result.stderr[-300:].decode(errors="replace")
        raise NoVerdict(f"{artifact.source} could not be packed: {said}")
    with no_verdict_where(f"{artifact.source} could not be fetched"):
        return await source.read(_PACKED)


def _unpack(archive: bytes, source: str, target: Path) -> bool:
    """Unpack below `target`, and say whether the artifact is a folder; a single file becomes `target/file`.

    What is unpacked takes no more room than the archive and `_MOST_LINKED_BYTES`: nothing in it is compressed, or has
    holes, and what further names of a file hold is counted."""
    is_folder, left = False, _MOST_LINKED_BYTES
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as packed:
        for member, relative, is_link in _below(packed, source):
            left -= member.size if is_link else 0
            if left < 0:
                raise tarfile.TarError(f"its hard links hold more than {_MOST_LINKED_BYTES} bytes")
            if len(relative.parts) > _MOST_FOLDERS:
                raise tarfile.TarError(f"more than {_MOST_FOLDERS} of its folders lie in one another")
            if member.isdir():
                is_folder = is_folder or not relative.parts
                target.joinpath(relative).mkdir(parents=True, exist_ok=True)
            elif member.issparse():
                raise tarfile.TarError(f"{relative} has holes")
            elif member.isfile():
                content = packed.extractfile(member)
                assert content is not None, "a file has content"
                place = target / relative if relative.parts else target / "file"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
                permissions = member.get_info()["mode"]
                assert isinstance(permissions, int), "a number, by its documentation"
                place.chmod(0o755 if permissions & 0o100 else 0o644)
    return is_folder


def _below(packed: tarfile.TarFile, source: str) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath, bool]]:
    """Yield what is packed below `source` with its place, and whether it is a further name of what came before.

    tar packs the content of a file that has several names once, with the first of them. Raises TarError where a further
    name leads to nothing that was yielded before it: no tar writes that."""
    stated = PurePosixPath(source.lstrip("/"))
    yielded: dict[PurePosixPath, tarfile.TarInfo] = {}
    for member in packed:
        if member.size < 0:
            raise tarfile.TarError(f"{member.name} is smaller than nothing, and would be read again and again")
        path = PurePosixPath(member.name)
        if ".." in path.parts or not path.is_relative_to(stated):
            continue
        first = yielded.get(PurePosixPath(member.linkname)) if member.islnk() else member
        if first is None:
            raise tarfile.TarError(f"{member.name} is a link to {member.linkname}, which is not packed before it")
        yielded[path] = first
        yield first, path.relative_to(stated), member.islnk()
