"""The form of calls of Qwen3-Coder, and of Qwen since 3.5: tags, with values that are not quoted.

    <tool_call>
    <function=read_file>
    <parameter=path>
    a.py
    </parameter>
    </function>
    </tool_call>

A value has the type that the tool's schema gives its parameter."""

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, checked_call, typed
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parameters import ParameterForm
from serving.rendering.formats.parser import BlockFormat, CallBlock

_FUNCTION, _END = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    head, _, rest = text.partition(_FUNCTION)
    name, bracket, body = rest.partition(">")
    inside, end, tail = body.rpartition(_END)
    if head.strip() or tail.strip() or not (bracket and end):
        raise NoCall("a call is one function between its tags")
    schemas = tools.get(name, {})
    arguments = {}
    for part in _parameters(inside):
        key, bracket, value = part.partition(">")
        if not bracket or _PARAMETER in value:
            raise NoCall("a parameter has a name and an end")
        value = value.removeprefix("\n").removesuffix("\n")
        arguments[key] = typed(value, schemas.get(key))
    return [checked_call(name, arguments)]


def _parameters(text: str) -> list[str]:
    """Return what stands between each parameter's tags, its name first. Raises NoCall for text outside of them."""
    *parts, rest = text.split(_END_PARAMETER)
    opened = [part.lstrip() for part in parts]
    if rest.strip() or not all(part.startswith(_PARAMETER) for part in opened):
        raise NoCall("a function holds parameters only")
    return [part.removeprefix(_PARAMETER) for part in opened]


FUNCTION_XML = BlockFormat((CallBlock("<tool_call>", "</tool_call>", _read),))
FUNCTION_XML_CALLS = (
    (
        "",
        CallForm(
            f"<tool_call>\n{_FUNCTION}",
            ">\n",
            f"{_END}\n</tool_call>",
            between="\n",
            mark="<tool_call>",
            parameter=ParameterForm(_PARAMETER, ">\n", f"\n{_END_PARAMETER}\n", (_PARAMETER, _END_PARAMETER)),
        ),
    ),
)
