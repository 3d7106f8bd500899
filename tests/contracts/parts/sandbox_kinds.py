"""The kinds of sandboxes that the contract is run over, and a small image to stand on."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from environments.sandboxes.images.images import Image, UnpackedImages

PROGRAMS = [
    "sh",
    "cat",
    "ls",
    "id",
    "env",
    "sleep",
    "touch",
    "mkdir",
    "rm",
    "ln",
    "dd",
    "kill",
    "head",
    "seq",
    "find",
    "chmod",
    "printf",
]


def image(directory: Path, more: Sequence[str] = ()) -> Image:
    """Return an image of this machine's shell and a few tools, packed by us and unpacked by the product.

    `more` are tools beside these."""
    archive = directory / "image.tar"
    layers = [
        packed_files(_system([*PROGRAMS, *more])),
        packed_files({"app/readme": b"of the image\n", "etc/motd": b"hello\n"}),
    ]
    write_docker_archive(archive, layers, {"Env": ["PLACE=image"], "WorkingDir": "/app"})
    return UnpackedImages(directory / "images").get(archive)


def write_docker_archive(archive: Path, layers: list[bytes], config: dict[str, object]) -> None:
    """Write what `docker save` writes."""
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    told = json.dumps({"config": config, "rootfs": {"type": "layers", "diff_ids": digests}}).encode()
    name = f"{hashlib.sha256(told).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": names}]).encode()
    files = {"manifest.json": manifest, name: told, **dict(zip(names, layers, strict=True))}
    archive.write_bytes(packed_files(files))


def _system(programs: Sequence[str]) -> dict[str, bytes]:
    """Return the programs with the libraries that they load, by their places in the image."""
    found: dict[str, bytes] = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "root/.profile": b""}
    for name in programs:
        path = shutil.which(name)
        assert path is not None, name
        found[f"bin/{name}"] = Path(path).read_bytes()
        for library in _libraries(path):
            found[library.lstrip("/")] = Path(library).read_bytes()
    return found


def _libraries(path: str) -> Iterator[str]:
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return (word for line in told.splitlines() for word in line.split() if word.startswith("/"))


def packed_files(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
