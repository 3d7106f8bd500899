"""Carries what an agent made to the sandbox of a verifier that trusts nothing else of the agent's.

The agent was root in its own sandbox, so the archive is taken for hostile: of it, only plain files and folders below
the stated places get across, and no symbolic link. Each name of a file that has several (hard links) gets across as a
plain file of its own. What the agent began with and has taken away since, or put a link in the place of, is removed
there, too; what the verifier's own image has beside that stays."""

import errno
import io
import os
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from environments.errors import OF_THIS_MACHINE, NoVerdict, no_verdict_where
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Artifact

Names = Mapping[Artifact, frozenset[PurePosixPath]]
"""What lies in each artifact, itself included, by paths that begin at its place."""
_PACKED = "/tmp/.artifact.tar"
_LISTED = "/tmp/.artifact.list"
_ESCAPED = re.compile(rb"\\([0-7]{3}|[abfnrtv\\])")
_MEANT = bytes.maketrans(b"abfnrtv\\", b"\a\b\f\n\r\t\v\\")
_TIMEOUT_SECONDS = 120.0
_MOST_FOLDERS = 100  # in one another: what removes them again calls itself for each
_MOST_LINKED_BYTES = 64 << 20  # 131,072 links to one large file fit into an archive of 64 MiB
_OF_THIS_MACHINE = (*OF_THIS_MACHINE, errno.ENOSPC, errno.EDQUOT)  # where it unpacks


async def names_in(artifacts: Sequence[Artifact], sandbox: Sandbox) -> Names:
    """Return what each artifact holds in a sandbox. Raises NoVerdict where that cannot be listed."""
    return {artifact: await _names(artifact, sandbox) for artifact in artifacts}


async def carry(began: Names, source: Sandbox, target: Sandbox) -> None:
    """Make each artifact in `target` what it is in `source`, where the agent began with what `began` holds.

    One that the agent did not make is left out, which is for the tests to see. Raises NoVerdict where what is there
    cannot be packed."""
    for artifact, names in began.items():
        archive = await _packed(artifact, source)
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder)
            try:
                left = _Left() if archive is None else _unpack(archive, artifact.source, unpacked)
            except (tarfile.TarError, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE:
                    raise
                raise NoVerdict(f"{artifact.source} is packed wrongly: {error}") from error
            gone = [name for name in names if not (left.is_folder and (unpacked / name).is_dir())]
            with no_verdict_where(f"{artifact.source} could not be put into the verifier's sandbox"):
                place = PurePosixPath(artifact.source)
                links = {str(place / name): to for name, to in left.links.items()}
                await target.remove([str(place / name) for name in gone], links)
                await _put(unpacked, artifact.source, target, is_folder=left.is_folder)


async def _put(unpacked: Path, source: str, target: Sandbox, *, is_folder: bool) -> None:
    file = unpacked / "file"
    if is_folder:
        await target.copy_in(unpacked, source)
    elif file.exists():
        await target.write(source, file.read_bytes(), executable=bool(file.stat().st_mode & 0o100))


async def _names(artifact: Artifact, sandbox: Sandbox) -> frozenset[PurePosixPath]:
    """List what tar would pack, which writes backslashes and what no line can hold as a C program does."""
    if not await _done_by_tar(artifact, sandbox, "-c -v -f /dev/null", f">{_LISTED}"):
        return frozenset()
    with no_verdict_where(f"the list of {artifact.source} could not be fetched"):
        lines = (await sandbox.read(_LISTED)).splitlines()
    stated = PurePosixPath(artifact.source.lstrip("/"))
    paths = (PurePosixPath(os.fsdecode(_ESCAPED.sub(_unescaped, line))) for line in lines)
    return frozenset(path.relative_to(stated) for path in paths if path.is_relative_to(stated))


def _unescaped(found: re.Match[bytes]) -> bytes:
    said = found[1]
    return said.translate(_MEANT) if len(said) == 1 else bytes((int(said, 8) & 0xFF,))


async def _packed(artifact: Artifact, source: Sandbox) -> bytes | None:
    """Return the archive of one artifact, None where it is not there."""
    if not await _done_by_tar(artifact, source, f"-c -f {_PACKED}"):
        return None
    with no_verdict_where(f"{artifact.source} could not be fetched"):
        return await source.read(_PACKED)


async def _done_by_tar(artifact: Artifact, sandbox: Sandbox, options: str, to: str = "") -> bool:
    """Have tar work on one artifact; return whether it is there."""
    place, inside = shlex.quote(artifact.source), shlex.quote(f".{artifact.source}")
    excluded = " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in artifact.exclude)
    script = f"rm -rf {_PACKED}; [ -e {place} ] || exit 3; exec tar {options} {excluded} -C / -- {inside} {to}"
    result = await sandbox.run(("/bin/sh", "-c", script), timeout_seconds=_TIMEOUT_SECONDS, workdir="/")
    if result.exit_code not in (0, 3) or result.timed_out:
        said = result.stderr[-300:].decode(errors="replace")
        raise NoVerdict(f"{artifact.source} could not be packed: {said}")
    return result.exit_code == 0


@dataclass(frozen=True)
class _Left:
    """What the agent made of an artifact: a folder, or a file or nothing; and where the links in it lead."""

    is_folder: bool = False
    links: Mapping[PurePosixPath, str] = field(default_factory=dict)


def _unpack(archive: bytes, source: str, target: Path) -> _Left:
    """Unpack below `target`, and say what it was; a single file becomes `target/file`.

    What is unpacked takes no more room than the archive and `_MOST_LINKED_BYTES`: nothing in it is compressed, or has
    holes, and what further names of a file hold is counted."""
    is_folder, links, left = False, dict[PurePosixPath, str](), _MOST_LINKED_BYTES
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
            elif member.issym():
                links[relative] = member.linkname
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
    return _Left(is_folder, links)


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
