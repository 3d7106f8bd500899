"""The files of a model's directory that are read: safetensors for weights, and text. No code in it is run.

Pickles (`.bin`, `.pt` and the like) are programs that run when they are read, and a repository's own modelling code
runs when it is trusted. Both come from the model's author, and would run with the rights of the service."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from core.errors import ConfigError, WeightsError
from core.model.weights_digest import tensors_of

PICKLES: Final = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
LOCAL: Final[dict[str, Any]] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers is asked for whatever it reads of a directory; for weights with `use_safetensors=True`."""

_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_ADAPTER: Final = "adapter_config.json"
_TEXTS: Final = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", _INDEX
)  # fmt: skip
_AGAIN: Final = "download all of the model's files again, from one revision"
_POINTER: Final = b"version https://git-lfs.github.com/spec/"


def weight_files(directory: Path) -> list[Path]:
    """Return the files of a model's weights, as transformers chooses them; what lies beside them is left alone.

    These are the one whole file, or those that the index names, or all where there is neither, as in a directory of
    ours. Raises ConfigError for an index that is none."""
    if (directory / _WHOLE).is_file():
        return [directory / _WHOLE]
    if not (directory / _INDEX).is_file():
        return sorted(directory.glob("*.safetensors"))
    return sorted({directory / Path(name).name for name in _named(directory / _INDEX).values()})


def _named(index: Path) -> dict[str, str]:
    """Return the file of each tensor. Raises ConfigError for an index that is none."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(name) for tensor, name in content.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: no index of weights can be read ({error!r}): download it again") from error


def check_weights(directory: Path) -> None:
    """Check that a model's weights are there and whole. Raises ConfigError naming the file at fault, and what to do."""
    files = weight_files(directory)
    if files and (directory / _ADAPTER).exists() and (directory / _WHOLE in files or (directory / _INDEX).exists()):
        raise ConfigError(
            f"{directory / _ADAPTER}: an adapter beside a whole model, which some programs add to it: merge it into"
            " the model, and save that, or move it away"
        )
    if not files:
        raise ConfigError(f"{directory}: no weights: download the model's *.safetensors beside its config.json")
    has_index = files[0].name != _WHOLE
    if has_index and not (directory / _INDEX).is_file():
        raise _strange(directory, files)
    for path in files:
        _check_is_there(path)
    try:
        tensors = tensors_of(files)
    except WeightsError as error:
        raise ConfigError(f"{error}: download the file again") from error
    if not tensors:
        raise ConfigError(f"{files[0]}: no tensor is in it: download the file again")
    for tensor, name in _named(directory / _INDEX).items() if has_index else ():
        if tensor not in tensors:
            raise ConfigError(f"{directory / Path(name).name}: lacks tensor {tensor}, which {_INDEX} names: {_AGAIN}")


def _strange(directory: Path, files: Sequence[Path]) -> ConfigError:
    """Say why weights are not those of a whole model, under whose names transformers would find them."""
    if (directory / _ADAPTER).exists():
        return ConfigError(f"{directory / _ADAPTER}: an adapter and no model: merge it into its base, and save that")
    found = ", ".join(path.name for path in files[:3])
    return ConfigError(
        f"{directory / _INDEX}: is missing, as is {_WHOLE}, and {found} alone may be a part: download it with all files"
        " that it names"
    )


def check_fits(directory: Path, held: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a model's weights are those of its config, by names and shapes. Raises ConfigError."""
    unlike = [name for name in wanted if name in held and held[name] != wanted[name]]
    refuse_unfit(directory, [name for name in wanted if name not in held], unlike)


def refuse_unfit(directory: Path, lacking: Collection[str], unlike: Collection[str]) -> None:
    """Raise ConfigError where some of a model's tensors lack, which would be random numbers, or have other shapes."""
    for names, what in ((lacking, "lack"), (unlike, "have other shapes for")):
        if names:
            raise ConfigError(
                f"{directory}: its weights {what} {len(names)} of the tensors that config.json asks for, such as"
                f" {min(names)}: {_AGAIN}"
            )


def _check_is_there(path: Path) -> None:
    """Check that a file is what its name says, and not what a hub's tools put in its place."""
    if path.is_symlink() and not path.exists():
        raise ConfigError(
            f"{path}: a link to {path.readlink()}, which is not there: download it again, or copy it with `cp -L`"
        )
    if not path.exists():
        raise ConfigError(f"{path}: is missing, and {_INDEX} names it: download it")
    if not path.is_file():
        raise ConfigError(f"{path}: no file: download it again")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ConfigError(f"{path}: a Git-LFS pointer and not the file: run `git lfs pull` in {path.parent}")


def check_model_files(directory: Path) -> None:
    """Check a model's directory, but not its weights. Raises ConfigError naming the file at fault, and what to do."""
    for path in (directory / name for name in _TEXTS):
        if path.exists() or path.is_symlink():
            _check_is_there(path)
    for path in sorted(directory.glob("*")):
        if path.suffix.lower() in PICKLES:
            raise ConfigError(
                f"{path}: a pickle runs whatever is in it when it is read, so models are read from safetensors alone: "
                "save the weights anew where you trust them (`model.save_pretrained(DIRECTORY)` of transformers writes "
                "model.safetensors), and take this file out of the directory"
            )
