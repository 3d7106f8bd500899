"""The prompts of a probe: the shapes in which a product asks a model, rendered by the model's own template.

Probing only the beginning of plain texts would look where no user ever is: a version can go wrong after the marker of
an assistant's turn, and a text without such a marker would not show it."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import InvalidRequest
from core.ports import Renderer

_RUN: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_SYSTEM = "You are a helpful coding assistant."
_ASKED = (
    "hi",
    "Write a function that adds up a list of numbers.",
    "Why does `xs[1:]` skip the first element?",
    "Rename `tmp` to `total`:\n\ntmp = 0\nfor x in xs:\n    tmp += x",
    "The tests fail with KeyError: 'id'. What now?",
    "Explain what a mutex is in one sentence.",
)
_FOLLOWED = (
    ("Sort these by age.", "sorted(people, key=lambda p: p.age)", "Oldest first, please."),
    ("Is 91 prime?", "No: 91 = 7 * 13.", "And 97?"),
)
_TYPED = ("def total(xs):\n    ", "import os\n\n", "for i in range(", "class Stack:\n    def __init__(self):\n")


def probe_prompts(renderer: Renderer) -> tuple[tuple[int, ...], ...]:
    """Return sixteen prompts: questions with and without a system message and tools, later turns, and plain text.

    Shapes for which this model's template has no place are left out."""
    user = [[_said("user", text)] for text in _ASKED]
    later = [[_said("user", a), _said("assistant", b), _said("user", c)] for a, b, c in _FOLLOWED]
    with_system = [[_said("system", _SYSTEM), *messages] for messages in (user[1], user[4])]
    asked: list[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = [
        *((messages, ()) for messages in (*user, *later, *with_system)),
        *((messages, (_RUN,)) for messages in (user[1], user[4])),
    ]
    rendered = [renderer.render_text(text, None) for text in _TYPED]
    for messages, tools in asked:
        try:
            rendered.append(renderer.render(messages, tools))
        except InvalidRequest:
            continue
    return tuple(rendered)


def _said(role: str, content: str) -> Mapping[str, Any]:
    return {"role": role, "content": content}
