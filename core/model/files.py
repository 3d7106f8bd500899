"""The files of a model's directory that are read: safetensors for weights, and text. No code in it is run.

Pickles (`.bin`, `.pt` and the like) are programs that run when they are read, and a repository's own modelling code
runs when it is trusted. Both come from the model's author, and would run with the rights of the service."""

from pathlib import Path
from typing import Any, Final

from core.errors import ConfigError

PICKLES: Final = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
LOCAL: Final[dict[str, Any]] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers is asked for whatever it reads of a directory; for weights with `use_safetensors=True`."""


def check_model_files(directory: Path) -> None:
    """Check a model's directory. Raises ConfigError naming a forbidden file, and what to do."""
    for path in sorted(directory.glob("*")):
        if path.suffix.lower() in PICKLES:
            raise ConfigError(
                f"{path}: a pickle runs whatever is in it when it is read, so models are read from safetensors alone: "
                "save the weights anew where you trust them (`model.save_pretrained(DIRECTORY)` of transformers writes "
                "model.safetensors), and take this file out of the directory"
            )
