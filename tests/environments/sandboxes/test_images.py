"""Images are unpacked as their archives say, whole, checked, and within their own root."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
import sandbox_kinds
import zstandard

from environments.sandboxes.images.archive import BadImage
from environments.sandboxes.images.images import UnpackedImages


def packed(*members: tuple[str, bytes | tuple[bytes, str]]) -> bytes:
    """Return a tar of files, or of links as (type, target); folders have names that end with a slash."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o6755
            if isinstance(content, tuple):
                member.type, member.linkname = content
                archive.addfile(member)
            elif name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def holes() -> bytes:
    """Return a tar of one file that is all hole, of a TiB."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("holes")
        member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
        archive.addfile(member)
    return made.getvalue()


def unpacked(tmp_path: Path, *layers: bytes) -> Path:
    sandbox_kinds.write_docker_archive(tmp_path / "image.tar", list(layers), {})
    return UnpackedImages(tmp_path / "images").get(tmp_path / "image.tar").root


def test_later_layers_add_replace_and_remove(tmp_path: Path) -> None:
    first = packed(("a/", b""), ("a/one", b"1"), ("a/two", b"2"), ("b/", b""), ("b/old", b"x"), ("c", b"file"))
    second = packed(
        ("a/.wh.one", b""), ("a/two", b"22"), ("b/new", b"y"), ("b/.wh..wh..opq", b""), ("c/", b""), ("c/d", b"z")
    )
    root = unpacked(tmp_path, first, second)
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == {"a", "a/two", "b", "b/new", "c", "c/d"}
    assert (root / "a/two").read_bytes() == b"22"


def test_links_are_kept_and_rights_of_owners_are_not(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        packed(("usr/bin/", b""), ("usr/bin/sh", b"shell"), ("bin", (tarfile.SYMTYPE, "usr/bin"))),
        packed(("bin/ash", (tarfile.LNKTYPE, "bin/sh")), ("bin/own", b"own")),
    )
    assert (root / "usr/bin/ash").samefile(root / "usr/bin/sh")
    assert (root / "usr/bin/own").stat().st_mode & 0o7777 == 0o755
    assert (root / "bin").readlink() == Path("usr/bin")


def test_a_folder_that_becomes_a_link_hands_its_mode_to_nobody(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "etc").mkdir(parents=True, mode=0o700)
    root = unpacked(tmp_path, packed(("a/etc/", b""), ("a", (tarfile.SYMTYPE, str(outside)))))
    assert (root / "a").readlink() == outside
    assert (outside / "etc").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("target", ["/../../outside", "../../../outside", "{outside}"])
def test_a_link_of_a_layer_leads_nowhere_else(tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    link = target.format(outside=outside)
    root = unpacked(
        tmp_path,
        packed(("link", (tarfile.SYMTYPE, link)), ("file", (tarfile.SYMTYPE, f"{link}/kept"))),
        packed(("link/new", b"x"), ("link/.wh.kept", b""), ("file", b"changed"), ("../../up", b"x")),
    )
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert (root / "file").read_bytes() == b"changed"
    assert not (tmp_path / "up").exists()


def test_circles_and_names_of_nothing_are_refused(tmp_path: Path) -> None:
    circle = packed(("a", (tarfile.SYMTYPE, "b")), ("b", (tarfile.SYMTYPE, "a")), ("a/x", b""))
    with pytest.raises(BadImage, match="circles"):
        unpacked(tmp_path, circle)
    with pytest.raises(BadImage, match="no file"):
        unpacked(tmp_path, packed(("a/..", b"")))
    assert not list((tmp_path / "images").glob("sha256-*"))
    assert not list((tmp_path / "images").glob("making-*"))


@pytest.mark.parametrize("compress", [lambda data: data, gzip.compress, zstandard.compress])
def test_the_layout_of_oci_is_read(tmp_path: Path, compress: "type[bytes]") -> None:
    layer = packed(("a", b"1"))
    index = oci(tmp_path / "layout", layer, compress(layer))
    image = UnpackedImages(tmp_path / "images").get(tmp_path / "layout")
    assert (image.root / "a").read_bytes() == b"1"
    assert (image.workdir, image.environment) == ("/app", {"A": "b=c"})
    assert image.spec.workdir == "/app"
    assert image.digest in index.read_text() or image.digest.startswith("sha256:")
    again = UnpackedImages(tmp_path / "images").get(tmp_path / "layout")
    assert again.root == image.root


def test_what_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    layer = packed(("a", b"1"))
    oci(tmp_path / "layout", layer, gzip.compress(packed(("a", b"2"))))
    with pytest.raises(BadImage, match="is not the layer"):
        UnpackedImages(tmp_path / "images").get(tmp_path / "layout")
    assert not list((tmp_path / "images").glob("sha256-*"))
    with pytest.raises(BadImage, match="folders lie in one another"):
        unpacked(tmp_path, packed(("a/" * 300, b"")))
    with pytest.raises(BadImage, match="has holes"):
        unpacked(tmp_path, holes())
    oci(tmp_path / "short", layer, gzip.compress(layer)[:-9])
    with pytest.raises(BadImage, match="cannot be unpacked"):
        UnpackedImages(tmp_path / "images").get(tmp_path / "short")
    (tmp_path / "empty.tar").write_bytes(packed(("a", b"")))
    with pytest.raises(BadImage, match=r"manifest\.json"):
        UnpackedImages(tmp_path / "images").get(tmp_path / "empty.tar")


def oci(folder: Path, layer: bytes, stored: bytes) -> Path:
    """Write a layout that says it holds `layer`, and stores `stored`."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, object]:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"digest": f"sha256:{name}", "size": len(content)}

    diff = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {"config": {"Env": ["A=b=c"], "WorkingDir": "/app"}, "rootfs": {"diff_ids": [diff]}}
    manifest = {"config": blob(json.dumps(config).encode()), "layers": [blob(stored)]}
    other = {**blob(b"{}"), "platform": {"architecture": "s390x"}}
    listed = [blob(json.dumps(manifest).encode()), other]
    (folder / "index.json").write_text(json.dumps({"manifests": listed}))
    return folder / "index.json"
