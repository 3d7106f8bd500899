"""DeepSeek's forms of calls.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file
    ```json
    {"path": "a.py"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_file<｜tool▁sep｜>{"path": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3 and R1 write a block of code, V3.1 the JSON alone."""

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, checked_call, parsed_json
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parser import BlockFormat, CallBlock

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    head, mark, rest = text.partition(_SEPARATOR)
    if not mark:
        raise NoCall("a call has a separator")
    if _FENCE not in rest:
        return [checked_call(head.strip(), parsed_json(rest))]
    name, _, fenced = rest.partition(_FENCE)
    inside, fence, tail = fenced.removeprefix("json").rpartition(_FENCE)
    if not fence or tail.strip():
        raise NoCall("a call ends with its block of code")
    return [checked_call(name.strip(), parsed_json(inside))]


DEEPSEEK = BlockFormat((CallBlock("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", _read),), (_BEGIN, _END))
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
DEEPSEEK_CALLS = (
    (
        "```json",
        CallForm(
            f"{_CALL}function{_SEPARATOR}",
            f"\n{_FENCE}json\n",
            f"\n{_FENCE}{_CALL_END}",
            "\n",
            begin=_BEGIN,
            end=_END,
            mark=_BEGIN,
        ),
    ),
    ("", CallForm(_CALL, _SEPARATOR, _CALL_END, begin=_BEGIN, end=_END, mark=_BEGIN)),
)
