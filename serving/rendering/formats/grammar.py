"""Grammars of whole answers, in llguidance's Lark, written in a model family's own form.

An answer is its thinking, where the model thinks, and then what is wanted: JSON, or calls, or text with or without
calls behind it. Thinking is free; it ends with its mark, behind which the rest begins."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.grammars.wanted import WantedAnswer, WantedTool
from serving.rendering.formats.parameters import ParameterForm, Parameters

_OPTIONS: Final = {"x-guidance": {"whitespace_pattern": r"[ \n\t]{0,16}", "coerce_one_of": True}}
"""White space in JSON, as much as people write: without a bound, a poor model writes nothing else to the end. `oneOf`
means `anyOf`: which alternatives exclude each other is not to be told while an answer is written."""
_HEAD: Final = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, llguidance would else allow only the tokens that the tokenizer makes of it. For the
text of a special token it would be that token, which the grammar then does not take."""
_MANY: Final = 16  # calls of an answer

Special = Callable[[str], list[int | str]]
"""Cuts a text into the ids of special tokens, which no text can stand for, and the text between them."""


@dataclass(frozen=True)
class CallForm:
    """The text around the names and arguments of calls, as the family's models write it."""

    before_name: str
    before_arguments: str
    after_arguments: str
    between: str = ""
    begin: str = ""
    """Before the first call ..."""
    end: str = ""
    """... and behind the last."""
    mark: str | None = None
    """What the first call begins with, and no text holds. None: an answer that begins with a brace is calls."""
    parameter: ParameterForm | None = None
    """How each argument is written; None: all of them as one object of JSON."""


@dataclass(frozen=True)
class Thoughts:
    """The marks of thinking. `is_open`: the prompt ends with the first."""

    opening: str
    closing: str
    is_open: bool


@dataclass
class _Lark:
    special: Special
    rules: dict[str, str] = field(default_factory=dict)

    def text(self, content: str) -> str:
        """Return the sequence of terminals that is a text."""
        return " ".join(_terminal(part) for part in self.special(content))

    def json(self, name: str, schema: Mapping[str, Any]) -> str:
        self.rules[name] = f"%json {json.dumps({**schema, **_OPTIONS})}"
        return name


def answer_grammar(wanted: WantedAnswer, form: CallForm | None, thoughts: Thoughts | None, special: Special) -> str:
    """Return the grammar. `form` is needed where there are tools."""
    lark = _Lark(special)
    bodies = list(_bodies(wanted, form, lark))
    lark.rules["body"] = "\n    | ".join(bodies)
    start = " ".join([*_thinking(thoughts, lark, of_text=wanted.schema is None and not wanted.must_call), "body"])
    rules = {"start": start, **lark.rules}
    return _HEAD + "".join(f"{name}: {rule}\n" for name, rule in rules.items())


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a schema alone, by which one at fault among several is found."""
    return f"{_HEAD}start: %json {json.dumps({**schema, **_OPTIONS})}\n"


def _thinking(thoughts: Thoughts | None, lark: _Lark, *, of_text: bool) -> Iterator[str]:
    """Tell the rules that stand before the body. White space between may come from the template, or the model."""
    if thoughts is None:
        return
    opening, closing = (special_alone(lark.special, mark.strip()) for mark in (thoughts.opening, thoughts.closing))
    if of_text and closing is None:
        return  # text allows all that thinking may be, where its marks are text
    if closing is None:
        lark.rules[f"thought[suffix={json.dumps(thoughts.closing.strip())}]"] = r"/(?s:.*)/"
    else:
        lark.rules |= {"thought": f"THOUGHT? <[{closing}]>", "THOUGHT": r"/(?s:.+)/"}
    lark.rules["SPACE"] = r"/[ \n]{1,4}/"
    if thoughts.is_open:
        lark.rules["thinking"] = "thought SPACE?"
        yield "thinking"
    elif opening is not None or not of_text:
        lark.rules["thinking"] = f"{lark.text(thoughts.opening.strip())} thought SPACE?"
        yield "thinking?"


def _bodies(wanted: WantedAnswer, form: CallForm | None, lark: _Lark) -> Iterator[str]:
    if wanted.schema is not None and not wanted.must_call:
        yield lark.json("answer", wanted.schema)
    if not wanted.tools:
        return
    assert form is not None
    begun = form.begin + form.before_name
    if wanted.schema is not None or wanted.must_call:
        yield _calls(wanted, form, lark, lark.text(begun))
    elif form.mark is None:
        lark.rules["TEXT"] = r"/\s*[^{\s](?s:.*)/"
        yield from ("TEXT?", _calls(wanted, form, lark, lark.text(begun)))
    elif special_alone(lark.special, form.mark) is not None:
        lark.rules["TEXT"] = f"/(?s:.+)/ & ~(/(?s:.*)/ {json.dumps(form.mark)} /(?s:.*)/)"  # nor is it spelled out
        yield from ("TEXT?", f"TEXT? {_calls(wanted, form, lark, lark.text(begun))}")
    else:
        lark.rules |= {"TEXT": "/(?s:.+)/", "opened[lazy]": f"/(?s:.*)/ {json.dumps(form.mark)}"}
        yield from ("TEXT?", _calls(wanted, form, lark, f"opened {lark.text(begun.removeprefix(form.mark))}"))


def _calls(wanted: WantedAnswer, form: CallForm, lark: _Lark, begun: str) -> str:
    """Return the rule of one call or several; `begun` is what stands before the first one's name."""
    for number, tool in enumerate(wanted.tools):
        arguments = _arguments(f"arguments_{number}", tool, form, lark)
        parts = json.dumps(tool.name), lark.text(form.before_arguments), arguments, lark.text(form.after_arguments)
        lark.rules[f"call_{number}"] = _sequence(*parts)
    lark.rules["call"] = " | ".join(f"call_{number}" for number in range(len(wanted.tools)))
    another = _sequence(lark.text(form.between), lark.text(form.before_name), "call")
    more = f"({another}){{0,{_MANY - 1}}}" if wanted.many_calls else ""
    lark.rules["calls"] = _sequence(begun, "call", more, lark.text(form.end))
    return "calls"


def _arguments(name: str, tool: WantedTool, form: CallForm, lark: _Lark) -> str:
    if form.parameter is None:
        return lark.json(name, tool.schema)
    return Parameters(form.parameter, lark.rules, lark.text, lark.json, lark.special).arguments(name, tool)


def _sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))


def special_alone(special: Special, mark: str) -> int | None:
    """Return the id of the special token that a mark is; None for one that is text."""
    parts = special(mark)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], int) else None


def _terminal(part: int | str) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part)
