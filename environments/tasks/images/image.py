"""What a task's sandbox is made from: the port of images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from environments.sandboxes.images.images import Image


@dataclass(frozen=True)
class Recipe:
    """How an image is had: pulled by its reference, or built from a Dockerfile with its folder as context."""

    context: Path
    dockerfile: Path | None
    reference: str | None = None
    build_timeout_seconds: float = 600.0


class Images(Protocol):
    """Prepares images, each once, and keeps them on this machine's disk."""

    async def prepare(self, recipe: Recipe) -> Image:
        """Return the image of a recipe. Raises InfrastructureFailure, with part `image`, where it cannot be had."""
        ...
