"""Tasks whose files do not fit into one context of the shipped model, and contexts that show how they are worked on.

Two long files have a word each, among lines that say nothing; a third is to have both: `note.py`, `log.py`, `job.py`.
The line editor changes the file that was read last, so both words are sought before. The context has not the room for
both long files: who sees the second has no more than written down, or forgotten, the first."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from environments.harness import prompts
from simulator.tasks.toolbox import TOOLS, numbered, tool_call

WORDS: Final = ("xs", "items", "nums", "rows", "vals", "data", "marks", "bits")
INSTRUCTION: Final = "note.py log.py job.py"
OFFERED: Final = ("read_file", "edit_file", "run_tests")
CALLS: Final = 6  # of the shortest way: read and test, twice; read and edit
_FILLER: Final = ("out = 0", "out += x", "return out", "if x > 0:")
_USES: Final = ("for x in {word}:", "out = {word}[0]", "n = {word}[1]")
_LINES: Final = 24  # of a long file
_JOB: Final = ("todo",)
_SETTINGS: Final = """\
schema_version = "1.4"

[agent]
timeout_sec = 180.0

[verifier]
timeout_sec = 60.0

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 256
storage_mb = 64
"""
_JUDGE: Final = """\
#!/bin/sh
if [ "$(cat /app/job.py)" = "{expected}" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""


def write_tasks(directory: Path, *, taught: int, held_out: int, seed: int) -> None:
    """Write `directory`/taught and `directory`/held-out, all drawn by the seed."""
    rng = random.Random(f"long {seed}")
    for name, count in (("taught", taught), ("held-out", held_out)):
        for number in range(count):
            _write_task(directory / name / f"{name}-{number}", rng)


def _write_task(place: Path, rng: random.Random) -> None:
    first, second = rng.choice(WORDS), rng.choice(WORDS)
    files = {
        "task.toml": _SETTINGS,
        "instruction.md": INSTRUCTION,
        "environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /app\nCOPY note.py log.py job.py tests.py ./\n",
        "environment/note.py": _text(_listing(first, rng)),
        "environment/log.py": _text(_listing(second, rng)),
        "environment/job.py": _text(_JOB),
        "environment/tests.py": 'assert open("job.py").read() != "todo\\n"\n',
        "tests/test.sh": _JUDGE.format(expected=f"use {first} {second}"),
        "solution/solve.sh": f"#!/bin/sh\necho 'use {first} {second}' >/app/job.py\n",
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)


def write_conversations(path: Path, count: int, seed: int, *, right: float, kinds: Sequence[str]) -> None:
    """Write so many contexts of such work, of `kinds` drawn alike, for `onward midtrain`.

    `right` is the share of the words in summaries that stay as they are; others are drawn."""
    rng = random.Random(f"long conversations {seed}")
    tools = [tool for tool in TOOLS if tool["function"]["name"] in OFFERED]
    contexts: dict[str, Callable[[random.Random], Messages]] = {
        "first": partial(_first, right),
        "second": partial(_second, right),
        "third": _third,
        "first, unsummed": _first_without_summary,
        "rest, unsummed": _rest_without_summary,
    }
    with path.open("w") as file:
        for _ in range(count):
            messages = list(contexts[rng.choice(kinds)](rng))
            file.write(json.dumps({"messages": messages, "tools": tools}) + "\n")


Messages = Iterator[dict[str, Any]]


def _first(right: float, rng: random.Random) -> Messages:
    word = rng.choice(WORDS)
    yield _user(INSTRUCTION)
    yield from _looked("note.py", _listing(word, rng))
    yield _user(prompts.SUMMARISE)
    yield _said(f"use {_perhaps(word, right, rng)}")


def _second(right: float, rng: random.Random) -> Messages:
    before, word = rng.choice(WORDS), rng.choice(WORDS)
    yield _user(INSTRUCTION)
    yield _said(f"use {before}")
    yield _user(prompts.GO_ON)
    yield from _looked("log.py", _listing(word, rng))
    yield _user(prompts.SUMMARISE)
    yield _said(f"use {_perhaps(before, right, rng)} {_perhaps(word, right, rng)}")


def _third(rng: random.Random) -> Messages:
    first, second = rng.choice(WORDS), rng.choice(WORDS)
    yield _user(INSTRUCTION)
    yield _said(f"use {first} {second}")
    yield _user(prompts.GO_ON)
    yield from _written(first, second)


def _first_without_summary(rng: random.Random) -> Messages:
    yield _user(INSTRUCTION)
    yield from _looked("note.py", _listing(rng.choice(WORDS), rng))
    yield tool_call("read_file", path="log.py")


def _rest_without_summary(rng: random.Random) -> Messages:
    word = rng.choice(WORDS)
    yield _user(INSTRUCTION)
    yield from _looked("log.py", _listing(word, rng))
    yield from _written(rng.choice(WORDS), word)


def _looked(path: str, lines: list[str]) -> Messages:
    yield tool_call("read_file", path=path)
    yield {"role": "tool", "content": numbered(lines)}
    yield tool_call("run_tests")
    yield {"role": "tool", "content": "fail"}


def _written(first: str, second: str) -> Messages:
    yield tool_call("read_file", path="job.py")
    yield {"role": "tool", "content": numbered(_JOB)}
    yield tool_call("edit_file", line=1, text=f"use {first} {second}")


def _perhaps(word: str, right: float, rng: random.Random) -> str:
    return word if rng.random() < right else rng.choice(WORDS)


def _listing(word: str, rng: random.Random) -> list[str]:
    return [rng.choice((*_FILLER, *_USES)).format(word=word) for _ in range(_LINES)]


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _text(lines: list[str] | tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in lines)
