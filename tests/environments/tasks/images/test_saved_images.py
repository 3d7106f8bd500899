"""What a Docker engine saves is unpacked once, and only where its layers are those that the image names.

The engine is a script here, which hands out an archive: what is looked at is what becomes of that."""

import asyncio
import json
import tarfile
from pathlib import Path

import pytest
from sandbox_kinds import packed_files, write_docker_archive

from environments.sandboxes.images.archive import BadImage
from environments.sandboxes.images.images import Image
from environments.tasks.images.engine import DockerEngine
from environments.tasks.images.image import Recipe

ENGINES_ID = "sha256:0123"  # of a manifest, as an engine that keeps those tells it
ENGINE = """#!/bin/sh
echo "$1" >>{folder}/asked
case "$1" in
  image) echo '{inspected}' ;;
  save) cp {folder}/image.tar "$3" ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return the folder of an engine that has one image."""
    inspected = json.dumps([{"Id": ENGINES_ID, "Config": {}}])
    (tmp_path / "docker").write_text(ENGINE.format(folder=tmp_path, inspected=inspected))
    (tmp_path / "docker").chmod(0o755)
    layers = [packed_files({"app/a": b"old", "app/gone": b""}), packed_files({"app/a": b"new", "app/.wh.gone": b""})]
    write_docker_archive(tmp_path / "image.tar", layers, {"Env": ["A=b"], "WorkingDir": "/app"})
    return tmp_path


def prepared(folder: Path) -> Image:
    async def run() -> Image:
        recipe = Recipe(folder, None, reference="ours:1")
        return await DockerEngine(folder / "unpacked", str(folder / "docker")).prepare(recipe)

    return asyncio.run(run())


def test_it_is_saved_and_unpacked_once(engine: Path) -> None:
    image = prepared(engine)
    assert (image.environment, image.workdir, image.digest == ENGINES_ID) == ({"A": "b"}, "/app", False)
    assert [path.read_bytes() for path in (image.root / "app").iterdir()] == [b"new"]
    assert prepared(engine) == image
    assert (engine / "asked").read_text().split() == ["pull", "image", "save", "pull", "image"]


def test_a_layer_that_is_not_the_one_it_says_is_refused(engine: Path) -> None:
    with tarfile.open(engine / "image.tar") as whole:
        whole.extractall(engine / "files", filter="data")
    (engine / "files" / "1" / "layer.tar").write_bytes(packed_files({"app/a": b"planted"}))
    with tarfile.open(engine / "image.tar", "w") as tampered:
        tampered.add(engine / "files", arcname="")
    with pytest.raises(BadImage, match="is not the layer"):
        prepared(engine)
    assert not list((engine / "unpacked").glob("sha256-*"))
