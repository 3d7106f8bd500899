"""Sessions of an agent with files of real packages, as production and a simulation with the same harness have them.

Both sides read, search, edit and run; they differ in what the work is about (the package), in who asks, and in how long
requests are. A mismatch changes the form of something on the simulated side, and nothing else."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from bench.log.embedded_log import turn
from core.events import Completion, Environment, ToolCall
from core.ids import SessionId, UserHash, new_inference_id

PRODUCTION, SIMULATION = ("rich", "fastapi", "pydantic"), ("httpx", "cyclopts", "rapidfuzz")
_USERS = 40
_BASE = turn()


@dataclass(frozen=True)
class Harness:
    """What of a harness's form a mismatch may change; the names are those of its tools."""

    read: Callable[[int, str], str] = lambda number, line: f"{number}\t{line}"
    found: Callable[[str, int, str], str] = lambda path, number, line: f"{path}:{number}:{line}"
    ran: Callable[[int, str], str] = lambda code, text: f"exit code {code}\n{text}"
    path_argument: str = "path"
    run_tool: str = "run"
    reminder: str | None = None  # a message of the system's behind each result
    answer: str = ""  # text beside the calls


SAME = Harness()
MISMATCHES: dict[str, Harness] = {
    "lines numbered '12: ' for '12<tab>'": Harness(read=lambda number, line: f"{number}: {line}"),
    "places found as '12-' for 'path:12:'": Harness(found=lambda _, number, line: f"{number}- {line}"),
    "results of commands as JSON": Harness(ran=lambda code, text: json.dumps({"exit_code": code, "output": text})),
    "an argument named otherwise": Harness(path_argument="file_path"),
    "a tool named otherwise": Harness(run_tool="bash"),
    "a reminder behind each result": Harness(reminder="Remember to run the tests."),
}


@dataclass
class Side:
    """One side, which makes sessions without end."""

    environment: Environment
    rng: random.Random
    harness: Harness = SAME
    _files: list[tuple[str, list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        self._files = list(_files(PRODUCTION if self.environment == "production" else SIMULATION))

    def session(self) -> list[Completion]:
        """Return the turns of one session."""
        rng = self.rng
        session_id = SessionId(f"{self.environment}-{rng.getrandbits(64):016x}")  # by the seed, as all of it
        is_production = self.environment == "production"
        words = int(rng.lognormvariate(3.4 if is_production else 3.0, 0.7)) + 4
        user = UserHash(f"user {int(_USERS * rng.random() ** 1.5)}") if is_production else None
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You work on a repository. Use the tools."},
            {"role": "user", "content": " ".join(rng.choices(self._words(), k=words))},
        ]
        said = []
        for number in range(rng.randint(3, 7)):
            calls = [self._call(f"{session_id}-{number}-{place}") for place in range(rng.choice((1, 1, 1, 2)))]
            said.append(
                msgspec.structs.replace(
                    _BASE,
                    inference_id=new_inference_id(session_id),
                    session_id=session_id,
                    user_id=user,
                    workload="agent",
                    environment=self.environment,
                    messages=tuple(messages),
                    tools=tuple(self._tools()),
                    tool_calls=tuple(call for call, _ in calls),
                    text=self.harness.answer,
                )
            )
            messages = [*messages, _asked(call for call, _ in calls)]
            messages += [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in calls]
            if self.harness.reminder is not None:
                messages.append({"role": "system", "content": self.harness.reminder})
        return said

    def _words(self) -> list[str]:
        path, lines = self.rng.choice(self._files)
        return [path, *" ".join(lines[:40]).split()]

    def _call(self, call_id: str) -> tuple[ToolCall, str]:
        rng, harness = self.rng, self.harness
        path, lines = rng.choice(self._files)
        at = rng.randrange(len(lines))
        kind = rng.choice(("read", "read", "grep", "edit", "run"))
        if kind == "read":
            arguments: dict[str, Any] = {harness.path_argument: path}
            part = lines[at : at + rng.randint(5, 60)] if rng.random() < 0.5 else lines
            text = "\n".join(harness.read(number, line) for number, line in enumerate(part, at + 1))
        elif kind == "grep":
            word = rng.choice(lines[at].split() or ["def"])
            arguments = {"pattern": word}
            hits = [(number, line) for number, line in enumerate(lines, 1) if word in line][:20]
            text = "\n".join(harness.found(path, number, line) for number, line in hits)
        elif kind == "edit":
            arguments = {harness.path_argument: path, "edits": [{"old": lines[at], "new": lines[at] + "  "}]}
            text = f"{path} was changed:\n@@ -{at + 1} +{at + 1} @@\n-{lines[at]}\n+{lines[at]}  "
        else:
            arguments = {"command": f"pytest {path}"}
            text = harness.ran(rng.randint(0, 1), f"{rng.randint(1, 40)} passed in {rng.random():.2f}s")
        name = harness.run_tool if kind == "run" else kind
        return ToolCall(id=call_id, name=name, arguments=json.dumps(arguments), index=0), text

    def _tools(self) -> Iterator[dict[str, Any]]:
        path = self.harness.path_argument
        taken = {"read": [path], "grep": ["pattern"], "edit": [path, "edits"], self.harness.run_tool: ["command"]}
        for name, keys in taken.items():
            properties = {key: {"type": "array" if key == "edits" else "string"} for key in keys}
            parameters = {"type": "object", "properties": properties}
            yield {"type": "function", "function": {"name": name, "parameters": parameters}}


def _asked(calls: Iterator[ToolCall]) -> dict[str, Any]:
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _files(packages: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    for package in packages:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            lines = path.read_text().splitlines()
            if len(lines) > 20:
                yield str(path.relative_to(folder.parent)), lines
