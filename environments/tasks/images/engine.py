"""Builds and pulls images with a Docker engine, and unpacks them into folders that sandboxes stand on."""

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes.images.images import Image, UnpackedImages
from environments.tasks.commands import said
from environments.tasks.images.image import Recipe


class DockerEngine:
    """A Docker engine, by its command. Images are unpacked once each, checked against their digests."""

    def __init__(self, folder: Path, command: str = "docker") -> None:
        """Unpack images below `folder`."""
        self._folder, self._command = folder, command
        self._images = UnpackedImages(folder)
        # Two builds of one Dockerfile at once are two images; one after the other, the second is the first.
        self._alone = asyncio.Lock()

    async def answers(self) -> bool:
        """Say whether there is an engine here that answers."""
        if shutil.which(self._command) is None:
            return False
        try:
            await self._said("version", "--format", "{{.Server.Version}}", timeout_seconds=20)
        except InfrastructureFailure:
            return False
        return True

    async def prepare(self, recipe: Recipe) -> Image:
        """Return the image of a recipe, pulled where it has a reference, else built, and unpacked.

        Raises InfrastructureFailure with the engine's words."""
        async with self._alone:
            return await self._prepared(recipe)

    async def _prepared(self, recipe: Recipe) -> Image:
        named = await self._named(recipe)
        told = json.loads(await self._said("image", "inspect", named, timeout_seconds=60))[0]
        config = told["Config"]
        if config.get("User") not in (None, "", "root", "0"):
            raise InfrastructureFailure(
                "image", f"{named} runs as {config['User']}: a sandbox has one user, root inside"
            )
        if config.get("Entrypoint"):
            raise InfrastructureFailure("image", f"{named} has an entrypoint: a sandbox starts no service")
        return await self._unpacked(str(told["Id"]), recipe.build_timeout_seconds)

    async def _named(self, recipe: Recipe) -> str:
        timeout = recipe.build_timeout_seconds
        if recipe.reference is not None:
            await self._said("pull", "--quiet", recipe.reference, timeout_seconds=timeout)
            return recipe.reference
        build = ("build", "--quiet", "--file", str(recipe.dockerfile), str(recipe.context))
        return (await self._said(*build, timeout_seconds=timeout)).strip()

    async def _unpacked(self, engines_id: str, timeout_seconds: float) -> Image:
        """Return the image of an engine's id, which is no digest of ours where the engine keeps manifests."""
        note = self._folder / f"id-{engines_id.removeprefix('sha256:')}"
        if note.exists() and (image := self._images.kept(note.read_text())) is not None:
            return image
        with tempfile.TemporaryDirectory(dir=_made(self._folder), prefix="saved.") as saved:
            archive = Path(saved) / "image.tar"
            await self._said("save", "--output", str(archive), engines_id, timeout_seconds=timeout_seconds)
            image = await asyncio.to_thread(self._images.get, archive)
            written = Path(saved) / "note"
            written.write_text(image.digest)
            os.replace(written, note)
        return image

    async def _said(self, *arguments: str, timeout_seconds: float) -> str:
        return await said([self._command, *arguments], timeout_seconds, "image")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
