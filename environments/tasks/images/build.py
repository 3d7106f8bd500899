"""Builds images without an engine: a Dockerfile's instructions, carried out upon a root that stands for its base.

The instructions understood are FROM (one stage), ARG, ENV, WORKDIR, COPY, ADD of local files, RUN, SHELL and USER root;
what tells only how a container is started or described is passed over, and all others are refused."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from environments.errors import InfrastructureFailure, TaskError
from environments.sandboxes.images.images import Image
from environments.tasks.images.bases import Bases
from environments.tasks.images.copying import Copied, gather
from environments.tasks.images.dockerfile import Instruction, pairs, parse, substituted
from environments.tasks.images.image import Recipe
from environments.tasks.images.layers import Layers, Step

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# They change no file: the harness starts what runs, and a sandbox opens no port.
_PASSED_OVER = {"CMD", "LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL"}
_MOST_CHARACTERS = 1 << 20  # of all variables together
_UNPACK = 'mkdir -p "$1" && exec tar -x -o -f - -C "$1"'
_PLACE = 'if [ -d "$1" ]; then to="$1/$2"; else to="$1"; mkdir -p "$(dirname "$1")"; fi; cat >"$to" && chmod "$3" "$to"'


@dataclass(frozen=True)
class _State:
    """An image that is being built, after some of its instructions."""

    key: str
    root: Path
    layers: tuple[Path, ...]
    environment: Mapping[str, str]
    arguments: Mapping[str, str] = field(default_factory=dict)
    outer: Mapping[str, str] = field(default_factory=dict)  # what ARG said before FROM
    workdir: str = "/"
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    @property
    def values(self) -> dict[str, str]:
        return {**self.arguments, **self.environment}


class LocalBuilder:
    """Builds upon the bases that are named; layers are shared by all tasks that begin alike."""

    def __init__(self, folder: Path, bases: Bases) -> None:
        """Keep layers in `folder`."""
        self._layers, self._bases = Layers(folder), bases

    async def prepare(self, recipe: Recipe) -> Image:
        """Return the image of a recipe: a base that stands for its reference, else what its Dockerfile builds.

        Raises InfrastructureFailure where nothing stands for the base, or an instruction is refused or fails."""
        if recipe.reference is not None and (recipe.dockerfile is None or self._bases.has(recipe.reference)):
            return _image(await self._from(recipe.reference, recipe))
        assert recipe.dockerfile is not None, "a recipe has a reference or a Dockerfile"
        try:
            instructions = parse(recipe.dockerfile.read_text())
            return _image(await self._built(instructions, recipe))
        except TaskError as error:
            raise InfrastructureFailure("image", f"{recipe.dockerfile}: {error}") from error

    async def _built(self, instructions: list[Instruction], recipe: Recipe) -> _State:
        if (recipe.context / ".dockerignore").exists():
            raise TaskError(".dockerignore is understood by an engine alone")
        state: _State | None = None
        before: dict[str, str] = {}
        for instruction in instructions:
            if instruction.name == "FROM":
                if state is not None:
                    raise _refused(instruction, "only one stage is built without an engine")
                state = replace(await self._from(_base(instruction, before), recipe), outer=before)
            elif state is None:
                before = _together(before, _argument(instruction, before, {}))
            else:
                state = await self._carried_out(state, instruction, recipe)
        assert state is not None, "parse() begins with FROM"
        return state

    async def _from(self, reference: str, recipe: Recipe) -> _State:
        base = await asyncio.to_thread(self._bases.named, reference)
        state = _State(base.digest, base.root, (), {"PATH": _PATH, "HOME": "/root", **base.environment})
        if base.setup is None:
            return state
        return await self._run(state, ("/bin/sh", "-c", base.setup), recipe, f"the base {base.name}")

    async def _carried_out(self, state: _State, instruction: Instruction, recipe: Recipe) -> _State:
        match instruction.name:
            case "ARG":
                more = _argument(instruction, state.values, state.outer)
                return replace(state, arguments=_together(state.arguments, more))
            case "ENV":
                return replace(state, environment=_together(state.environment, pairs(instruction, state.values)))
            case "WORKDIR":
                workdir = _joined(state.workdir, instruction.expanded(state.values))
                step = ("/bin/sh", "-c", 'mkdir -p "$1"', "sh", workdir)
                return replace(await self._run(state, step, recipe, f"WORKDIR {workdir}"), workdir=workdir)
            case "SHELL":
                return replace(state, shell=tuple(instruction.words))
            case "COPY" | "ADD":
                return await self._copied(state, instruction, recipe)
            case "RUN":
                return await self._ran(state, instruction, recipe)
            case "USER" if substituted(instruction.rest, state.values) in ("root", "0", "root:root", "0:0"):
                return state
            case name if name in _PASSED_OVER or (name == "ENTRYPOINT" and instruction.listed == []):
                return state
        raise _refused(instruction, "it is not understood without an engine")

    async def _ran(self, state: _State, instruction: Instruction, recipe: Recipe) -> _State:
        for name, value in instruction.flags:
            if name != "mount" or "type=cache" not in value:  # a cache changes how fast, not what
                raise _refused(instruction, f"--{name}={value} is not understood without an engine")
        says = f"line {instruction.line}, RUN {instruction.rest[:120]}"
        if instruction.scripts:
            script = instruction.scripts[0] if instruction.rest.startswith("<<") else _with_scripts(instruction)
            return await self._run(state, (*state.shell, script), recipe, says)
        listed = instruction.listed
        return await self._run(state, tuple(listed) if listed else (*state.shell, instruction.rest), recipe, says)

    async def _copied(self, state: _State, instruction: Instruction, recipe: Recipe) -> _State:
        copied = await asyncio.to_thread(_gathered, state, instruction, recipe)
        says = f"line {instruction.line}, {instruction.name} {instruction.rest[:120]}"
        if copied.name is None:
            command: tuple[str, ...] = ("/bin/sh", "-c", _UNPACK, "sh", copied.target)
        else:
            command = ("/bin/sh", "-c", _PLACE, "sh", copied.target, copied.name, f"{copied.permissions:o}")
        return await self._run(replace(state, workdir="/"), command, recipe, says, copied.content, state.workdir)

    async def _run(
        self,
        state: _State,
        command: tuple[str, ...],
        recipe: Recipe,
        says: str,
        stdin: bytes = b"",
        workdir_after: str | None = None,
    ) -> _State:
        """Return the state with one layer more."""
        step = Step(command, state.values, state.workdir, stdin, says)
        said = json.dumps([state.key, command, sorted(state.values.items()), state.workdir, blake3(stdin).hexdigest()])
        key = blake3(said.encode()).hexdigest()[:32]
        layer = await self._layers.made(key, state.root, state.layers, step, recipe.build_timeout_seconds)
        return replace(state, key=key, layers=(*state.layers, layer), workdir=workdir_after or state.workdir)


def _image(state: _State) -> Image:
    said = json.dumps([state.key, sorted(state.environment.items()), state.workdir])
    digest = f"blake3:{blake3(said.encode()).hexdigest()}"
    return Image(digest, state.root, state.layers, dict(state.environment), state.workdir)


def _gathered(state: _State, instruction: Instruction, recipe: Recipe) -> Copied:
    permissions: int | None = None
    for name, value in instruction.flags:
        if name == "chmod" and value.isdigit():
            permissions = int(value, 8)
        elif name == "chown" and value in ("root", "root:root", "0", "0:0"):
            continue
        elif name != "link":  # which is about caches alone
            raise _refused(instruction, f"--{name}={value} is not understood without an engine")
    words = instruction.expanded_words(state.values)
    if len(words) < 2 or instruction.scripts:
        raise _refused(instruction, "it names no source and target")
    *sources, target = words
    if instruction.name == "ADD" and any("://" in source or ".tar" in source for source in sources):
        raise _refused(instruction, "addresses and archives are for RUN")
    whole = _joined(state.workdir, target)
    folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    return gather(recipe.context, sources, whole.rstrip("/") + "/" if folder else whole, permissions)


def _with_scripts(instruction: Instruction) -> str:
    """Return a shell's command with its here-documents after it, as they stood in the Dockerfile."""
    endings = [word.split("<<")[1].strip("-\"'") for word in instruction.rest.split() if "<<" in word]
    bodies = "".join(f"{script}{end}\n" for script, end in zip(instruction.scripts, endings, strict=True))
    return f"{instruction.rest}\n{bodies}"


def _base(instruction: Instruction, values: Mapping[str, str]) -> str:
    if any(name != "platform" for name, _ in instruction.flags):
        raise _refused(instruction, "its flags are not understood")
    words = substituted(instruction.rest, values).split()
    if not words or (len(words) > 1 and (len(words) != 3 or words[1].upper() != "AS")):
        raise _refused(instruction, "it is written FROM image, or FROM image AS name")
    return words[0]


def _argument(instruction: Instruction, values: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """Return what ARG sets: its default, or what an ARG of that name before FROM said."""
    if instruction.name != "ARG":
        raise _refused(instruction, "only ARG stands before FROM")
    name, has_default, default = " ".join(instruction.expanded_words(values)).partition("=")
    if has_default:
        return {name: default}
    return {name: outer[name]} if name in outer else {}


def _together(known: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with more of them. Raises TaskError for more than a program can be given."""
    variables = {**known, **more}
    if sum(map(len, variables.values())) > _MOST_CHARACTERS:
        raise TaskError(f"its variables say more than {_MOST_CHARACTERS} characters")
    return variables


def _joined(workdir: str, path: str) -> str:
    """Return an absolute path, its dots resolved."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{workdir}/{path}").split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _refused(instruction: Instruction, why: str) -> TaskError:
    return TaskError(f"line {instruction.line}, {instruction.name} {instruction.rest[:80]}: {why}")
