"""A Docker engine builds images, and they are unpacked into folders; needs an engine, and no registry."""

import asyncio
from pathlib import Path

import pytest
from compose_stack import require_compose

from environments.errors import InfrastructureFailure
from environments.sandboxes.images.images import Image
from environments.tasks.images.engine import DockerEngine
from environments.tasks.images.image import Recipe

pytestmark = [pytest.mark.compose, pytest.mark.deep]


def built(folder: Path, dockerfile: str) -> Image:
    require_compose(engine=True)
    (folder / "context").mkdir(exist_ok=True)
    (folder / "context" / "a.txt").write_text("a")
    (folder / "context" / "Dockerfile").write_text(dockerfile)
    recipe = Recipe(folder / "context", folder / "context" / "Dockerfile", None, 120.0)

    async def run() -> Image:
        engine = DockerEngine(folder / "unpacked")
        assert await engine.answers()
        one, other = await asyncio.gather(engine.prepare(recipe), engine.prepare(recipe))
        assert one == other
        return one

    return asyncio.run(run())


def test_an_image_is_built_and_unpacked_once(tmp_path: Path) -> None:
    image = built(tmp_path, "FROM scratch\nCOPY a.txt /x/\nENV SAID='good day'\nWORKDIR /x\n")
    assert (image.root / "x" / "a.txt").read_text() == "a"
    assert (image.environment["SAID"], image.workdir, image.layers) == ("good day", "/x", ())
    kept = [path.name for path in (tmp_path / "unpacked").iterdir() if not path.name.startswith("id-")]
    assert kept == [image.digest.replace(":", "-")]


@pytest.mark.parametrize(
    ("line", "told"),
    [("USER 1000", "runs as 1000"), ('ENTRYPOINT ["/server"]', "has an entrypoint"), ("COPY no.txt /", r"no\.txt")],
)
def test_what_a_sandbox_cannot_be_is_told_of(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(InfrastructureFailure, match=told) as caught:
        built(tmp_path, f"FROM scratch\nCOPY a.txt /\n{line}\n")
    assert caught.value.part == "image"
