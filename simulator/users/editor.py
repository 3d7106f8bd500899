"""The file that a `fix` session works on, with the IDE's tools that read and change it."""

import json
from typing import Any, Literal

from simulator.tasks.sampling import UserTask
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.toolbox import numbered

Ending = Literal["done", "ask", "malformed", "limit"]


class Editor:
    """A file in an editor; `ending` is None while the session goes on."""

    def __init__(self, task: UserTask, sandbox: ForkServer) -> None:
        self._task = task
        self._sandbox = sandbox
        self.lines = list(task.source_lines)
        self.ending: Ending | None = None

    @property
    def code(self) -> str:
        return "\n".join(self.lines)

    async def tests_pass(self) -> bool:
        return (await self._sandbox.run(self.code, self._task.tests)).all_passed

    async def call(self, name: str, arguments: str) -> str:
        """Call a tool and return what it answers, "" when the session has ended."""
        try:
            given = json.loads(arguments)
            return await self._dispatch(name, given)
        except (ValueError, KeyError, TypeError, IndexError):
            self.ending = "malformed"
            return ""

    async def _dispatch(self, name: str, given: dict[str, Any]) -> str:
        match name:
            case "read_file" if given["path"] == self._task.path:
                return numbered(self.lines)
            case "edit_file":
                return self._edit(given["line"], given["text"])
            case "run_tests":
                return "pass" if await self.tests_pass() else "fail"
            case "ask" | "done":
                self.ending = name
                return ""
        raise ValueError(f"no such tool or file: {name}")

    def _edit(self, line: int, text: str) -> str:
        if not isinstance(line, int) or not isinstance(text, str) or not 1 <= line <= len(self.lines):
            raise ValueError(f"edit_file: no such line, or text that is not a string: {line!r}")
        self.lines[line - 1] = text
        return "ok"
