"""The tools that run programs: `terminal`, `run_tests`, `lint`; and `done`, by which the model ends its work."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.tools.tool import MOST_COMMAND_SECONDS, Bench, HarnessTool, Result, ToolRefused
from environments.sandboxes.sandbox import CommandResult

_SECONDS: Final = 60.0
_NOT_FOUND: Final = 127

Path = Annotated[str, Meta(pattern="^[^-]")]


class Terminal(msgspec.Struct, forbid_unknown_fields=True):
    """Run a command of the shell in the working copy, and show how it ended and what it printed."""

    command: Annotated[str, Meta(min_length=1)]
    timeout_seconds: Annotated[float, Meta(gt=0, le=MOST_COMMAND_SECONDS)] = _SECONDS


class RunTests(msgspec.Struct, forbid_unknown_fields=True):
    """Run the tests, all of them or those at `paths`."""

    paths: list[Path] = []


class Lint(msgspec.Struct, forbid_unknown_fields=True):
    """Show what the linter finds in the files and folders at `paths`, or in all; it changes nothing."""

    paths: list[Path] = []


class Done(msgspec.Struct, forbid_unknown_fields=True):
    """Say that the work is done, and what came of it."""

    message: str = ""


async def _terminal(bench: Bench, asked: Terminal) -> Result:
    return _shown(await bench.run(("sh", "-c", asked.command), asked.timeout_seconds))


async def _tests(bench: Bench, asked: RunTests) -> Result:
    return _shown(await bench.run((*bench.commands.test, *asked.paths)))


async def _lint(bench: Bench, asked: Lint) -> Result:
    ran = await bench.run((*bench.commands.lint, *(asked.paths or ["."])))
    if ran.exit_code == _NOT_FOUND:
        raise ToolRefused(f"there is no {bench.commands.lint[0]} here")
    return _shown(ran)


async def _done(bench: Bench, asked: Done) -> Result:
    return Result("")


def _shown(ran: CommandResult) -> Result:
    """Return a command's end and output, as the model is shown them."""
    parts = [_ending(ran)]
    for name, said in (("stdout", ran.stdout), ("stderr", ran.stderr)):
        if said.strip():
            parts.append(f"{name}:\n{said.decode(errors='replace').rstrip()}")
    if ran.cut_bytes:
        parts.append(f"[{ran.cut_bytes} bytes of its output left out]")
    return Result("\n".join(parts), succeeded=ran.exit_code == 0 and not ran.timed_out)


def _ending(ran: CommandResult) -> str:
    if ran.timed_out:
        return f"ended after {ran.seconds:.0f} s: its time was over"
    if ran.out_of_memory:
        return f"exit code {ran.exit_code}: out of memory"
    return f"exit code {ran.exit_code}"


TERMINAL = HarnessTool("terminal", Terminal, _terminal)
RUN_TESTS = HarnessTool("run_tests", RunTests, _tests)
LINT = HarnessTool("lint", Lint, _lint, reads_only=True)
DONE = HarnessTool("done", Done, _done, ends=True)
