"""A tool: its name, what it takes, and what it does in a sandbox."""

import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from environments.errors import OF_THIS_MACHINE
from environments.sandboxes.sandbox import CommandResult, Sandbox

MOST_COMMAND_SECONDS: Final = 120.0
# Python knows by size and second whether a file is what it compiled: an edit right after a run may be neither's change.
_NO_STALE_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": "1"}


class ToolRefused(Exception):
    """The call cannot be done as it was asked for; the message is what the model is told."""


@dataclass(frozen=True)
class Result:
    """What a call came to: the text that the model is shown; and False where it was refused or a command failed."""

    text: str
    succeeded: bool = True


@dataclass(frozen=True)
class Commands:
    """The programs behind the tools `run_tests` and `lint`; paths are added behind them."""

    test: tuple[str, ...] = ("python3", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider")
    lint: tuple[str, ...] = ("ruff", "check", "--no-cache", "--output-format=concise")


@dataclass
class Bench:
    """What tools work on. `kept` holds what a tool remembers between its calls, by the tool's name."""

    sandbox: Sandbox
    workdir: str
    commands: Commands = field(default_factory=Commands)
    seconds_left: Callable[[], float] = lambda: MOST_COMMAND_SECONDS
    kept: dict[str, Any] = field(default_factory=dict)

    def path(self, path: str) -> str:
        """Return the path as an absolute one; the model's are relative to the working copy."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def shown(self, path: str) -> str:
        """Return an absolute path as the model is shown it."""
        return posixpath.relpath(path, self.workdir) if path.startswith(self.workdir + "/") else path

    async def run(self, command: tuple[str, ...], seconds: float = MOST_COMMAND_SECONDS) -> CommandResult:
        """Run a command in the working copy, for no longer than is left."""
        limit = max(0.1, min(seconds, self.seconds_left()))
        return await self.sandbox.run(
            command, timeout_seconds=limit, workdir=self.workdir, environment=_NO_STALE_BYTECODE
        )

    async def text(self, path: str, errors: str = "strict") -> str:
        """Return a file's text; `errors` is as with `bytes.decode`. Raises ToolRefused where there is none."""
        with _reached(path):
            content = await self.sandbox.read(self.path(path))
        try:
            return content.decode(errors=errors)
        except UnicodeDecodeError:
            raise ToolRefused(f"{path} is not text in UTF-8") from None

    async def write(self, path: str, text: str) -> None:
        """Write a file, with the folders that it needs. Raises ToolRefused where it cannot be written."""
        with _reached(path):
            await self.sandbox.write(self.path(path), text.encode())


@contextmanager
def _reached(path: str) -> Iterator[None]:
    """Raise ToolRefused for what a program inside meets at a path of the model's.

    None of it is a failure of this machine: a disk that is full is the sandbox's own."""
    if "\0" in path:
        raise ToolRefused("path: it has a character that no path has")
    try:
        yield
    except FileNotFoundError:
        raise ToolRefused(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ToolRefused(f"{path} is a folder; `find` lists what is in it") from None
    except (NotADirectoryError, FileExistsError):
        raise ToolRefused(f"{path}: a part of the path is a file") from None
    except PermissionError:
        raise ToolRefused(f"{path}: not permitted") from None
    except OSError as error:
        if error.errno in OF_THIS_MACHINE:
            raise
        raise ToolRefused(f"{path}: {error.strerror}") from None


@dataclass(frozen=True)
class HarnessTool:
    """One tool. Calls that only read run side by side with their neighbours; all others run alone, in their order.

    `takes` is the type of its arguments, whose docstring describes the tool to the model; `ends`: a call is the model's
    word that it is done."""

    name: str
    takes: type[msgspec.Struct]
    run: Callable[[Bench, Any], Awaitable[Result]]
    reads_only: bool = False
    ends: bool = False

    @property
    def description(self) -> str:
        return " ".join((self.takes.__doc__ or "").split())

    def as_offered(self, *, is_strict: bool = False) -> dict[str, Any]:
        """Return the tool as the API takes it, in OpenAI's form; `is_strict`: its calls are to follow its schema."""
        function = {"name": self.name, "description": self.description, "parameters": _schema(self.takes)}
        return {"type": "function", "function": function | ({"strict": True} if is_strict else {})}

    def arguments(self, text: str) -> msgspec.Struct:
        """Read a call's arguments. Raises ToolRefused with what is wrong about them."""
        try:
            return msgspec.json.decode(text, type=self.takes)
        except msgspec.DecodeError as error:
            raise ToolRefused(f"{self.name}: the arguments are not what it takes: {error}") from None


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([kind], ref_template="{name}")
    plain = _inlined(components[kind.__name__], components)
    assert isinstance(plain, dict)
    return plain


def _inlined(part: Any, components: Mapping[str, Any]) -> Any:
    """Return a schema with its references replaced by what they name, and without titles and descriptions of types."""
    if isinstance(part, list):
        return [_inlined(each, components) for each in part]
    if not isinstance(part, Mapping):
        return part
    if "$ref" in part:
        return _inlined(components[part["$ref"]], components)
    is_object = part.get("type") == "object"
    left_out = ("title", "description") if is_object else ("title",)
    return {name: _inlined(value, components) for name, value in part.items() if name not in left_out}
