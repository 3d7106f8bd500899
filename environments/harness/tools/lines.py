"""The tools of an editor that replaces one line: for a small model that was trained on these alone, by these words.

The names, their order and what comes back are those of the simulated IDE, so a call costs a token or two and a context
of 512 holds a whole session."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.tools.tool import Bench, HarnessTool, Result, ToolRefused

_OPEN: Final = "lines"  # what a bench keeps for these tools: the path of the open file
_TESTS: Final = "tests.py"


class ReadFile(msgspec.Struct, forbid_unknown_fields=True):
    """Show a file with line numbers."""

    path: Annotated[str, Meta(min_length=1)]


class EditLine(msgspec.Struct, forbid_unknown_fields=True):
    """Replace one line."""

    line: Annotated[int, Meta(ge=1)]
    text: str


class Run(msgspec.Struct, forbid_unknown_fields=True):
    """Run the tests."""


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """Ask the user."""

    question: str


class Finish(msgspec.Struct, forbid_unknown_fields=True):
    """Say that the work is done."""


async def _read(bench: Bench, asked: ReadFile) -> Result:
    lines = (await bench.text(asked.path)).splitlines()
    bench.kept[_OPEN] = asked.path
    return Result("\n".join(f"{number} {line}" for number, line in enumerate(lines, 1)))


async def _edit(bench: Bench, asked: EditLine) -> Result:
    path = bench.kept.get(_OPEN) or await _only_file(bench)
    lines = (await bench.text(path)).splitlines()
    if asked.line > len(lines):
        raise ToolRefused(f"{path} has {len(lines)} lines")
    lines[asked.line - 1] = asked.text
    await bench.write(path, "".join(f"{line}\n" for line in lines))
    return Result("ok")


async def _only_file(bench: Bench) -> str:
    """Return the one file of the working copy beside its tests, which is open before any was read."""
    ran = await bench.run(("ls",))
    names = [name for name in ran.stdout.decode(errors="replace").splitlines() if name != _TESTS]
    if len(names) != 1:
        raise ToolRefused("no file is open: read one first")
    return names[0]


async def _run(bench: Bench, _: Run) -> Result:
    ran = await bench.run(("python3", "-B", _TESTS))
    passed = ran.exit_code == 0 and not ran.timed_out
    return Result("pass" if passed else "fail", succeeded=passed)


async def _end(_: Bench, __: Ask | Finish) -> Result:
    """End the work. A question ends it, too: nobody is there to answer."""
    return Result("")


LINES = (
    HarnessTool("read_file", ReadFile, _read, reads_only=True),
    HarnessTool("edit_file", EditLine, _edit),
    HarnessTool("run_tests", Run, _run),
    HarnessTool("ask", Ask, _end, ends=True),
    HarnessTool("done", Finish, _end, ends=True),
)
