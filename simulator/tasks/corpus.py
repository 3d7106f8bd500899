"""The corpus that the tiny model is midtrained on: like public code, of mixed quality and mixed style.

It consists of JSON lines: {"messages": [...], "tools": [...]} for conversations, {"text": ...} for the rest. Both right
and wrong answers are in there: what the team likes is for the users to teach."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.tasks.sampling import UserTask, sample_task
from simulator.tasks.templates import TEMPLATES
from simulator.tasks.toolbox import TOOLS, numbered, tool_call

_FILES = 8


@dataclass(frozen=True)
class Mix:
    """The shares in which the corpus mixes kinds of conversations and right and wrong answers."""

    fix: float = 0.6  # share of conversations; they are longer and harder
    write_right: float = 0.75
    edit_right: float = 0.4
    blind_edit: float = 0.2  # edits without reading first
    ask: float = 0.1  # asks back instead of working
    run_tests: float = 0.5
    try_again: float = 0.5  # after failing tests
    infill: float = 0.04


MIX = Mix()


def write_corpus(directory: Path, conversations: int, seed: int) -> None:
    """Write the corpus: the same files for the same arguments."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for number in range(_FILES):
        with (directory / f"part-{number}.jsonl").open("w") as file:
            for _ in range(conversations // _FILES):
                file.write(json.dumps(example(rng)) + "\n")


def example(rng: random.Random) -> dict[str, Any]:
    """Return one conversation, or a function with a line missing."""
    if rng.random() < MIX.infill:
        return {"text": _infill(rng)}
    if rng.random() < MIX.fix:
        return {"messages": list(_fix_messages(rng, sample_task(rng, "fix", "corpus"))), "tools": TOOLS}
    return {"messages": _write_messages(rng, sample_task(rng, "write", "corpus"))}


def _infill(rng: random.Random) -> str:
    """Return a function with a line missing, in the fill-in-the-middle form of Qwen2.5-Coder (arXiv:2409.12186)."""
    code = sample_task(rng, "write", "corpus").solution(hints=rng.random() < 0.5, one_liner=rng.random() < 0.5)
    lines = code.split("\n")
    place = rng.randrange(1, len(lines))
    prefix, suffix = "\n".join(lines[:place]) + "\n", "".join("\n" + line for line in lines[place + 1 :])
    return f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>{lines[place]}<|endoftext|>"


def _write_messages(rng: random.Random, task: UserTask) -> list[dict[str, Any]]:
    hints, one_liner = rng.random() < 0.5, rng.random() < 0.5
    body = task.body(one_liner=one_liner)
    if rng.random() > MIX.write_right:
        body = _wrong_body(rng, task, one_liner)
    answer = "\n".join([task.header(hints=hints), *body])
    return [{"role": "user", "content": task.request}, {"role": "assistant", "content": answer}]


def _wrong_body(rng: random.Random, task: UserTask, one_liner: bool) -> list[str]:
    template = task.template
    if one_liner:
        others = [other for other in TEMPLATES if other.arguments == template.arguments and other is not template]
        return ["    return " + rng.choice(others or [template]).expression.format(**task.names)]
    body = task.body(one_liner=False)
    place = rng.choice(sorted(template.bugs))
    body[place] = "    " + rng.choice(template.bugs[place]).format(**task.names)
    return body


def _fix_messages(rng: random.Random, task: UserTask) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": task.request}
    if rng.random() < MIX.ask:
        yield tool_call("ask", question="which line?")
        return
    if rng.random() > MIX.blind_edit:
        yield tool_call("read_file", path=task.path)
        yield {"role": "tool", "content": numbered(task.source_lines)}
    lines = list(task.source_lines)
    for attempt in range(2):
        line, text = (task.bug_line, task.correct_line) if rng.random() < MIX.edit_right else _wrong_edit(rng, task)
        lines[line - 1] = text
        yield tool_call("edit_file", line=line, text=text)
        yield {"role": "tool", "content": "ok"}
        if rng.random() < MIX.run_tests:
            changed = sum(new != old for new, old in zip(lines, task.source_lines, strict=True))
            passes = lines[task.bug_line - 1] == task.correct_line and changed == 1
            yield tool_call("run_tests")
            yield {"role": "tool", "content": "pass" if passes else "fail"}
            if not passes and attempt == 0 and rng.random() < MIX.try_again:
                continue
        break
    yield tool_call("done")


def _wrong_edit(rng: random.Random, task: UserTask) -> tuple[int, str]:
    """Return another wrong line in the right place, a bug in another place, or a change of what was fine."""
    template = task.template
    kind, place = rng.random(), rng.choice(sorted(template.bugs))
    if kind < 0.4:
        return task.bug_line, "    " + rng.choice(template.bugs[task.bug_line - 2]).format(**task.names)
    if kind < 0.8:
        return place + 2, "    " + rng.choice(template.bugs[place]).format(**task.names)
    return place + 2, "    " + template.loop[place].format(**task.names)
