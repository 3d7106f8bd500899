"""The form of calls of GLM 4.5 and later.

    <tool_call>read_file
    <arg_key>path</arg_key>
    <arg_value>a.py</arg_value>
    </tool_call>

A value that is text is not quoted: it has the type that the tool's schema gives it."""

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, checked_call, typed
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parameters import ParameterForm
from serving.rendering.formats.parser import BlockFormat, CallBlock

_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    head, *pairs = text.split(_KEY)
    name = head.strip()
    if not name or "\n" in name or "<" in name:
        raise NoCall("a call begins with its name")
    schemas = tools.get(name, {})
    arguments = {}
    for pair in pairs:
        key, end, rest = pair.partition(_END_KEY)
        between, begin, rest = rest.partition(_VALUE)
        value, close, tail = rest.rpartition(_END_VALUE)
        if between.strip() or tail.strip() or not (end and begin and close):
            raise NoCall("each key has a value")
        arguments[key.strip()] = typed(value, schemas.get(key.strip()))
    return [checked_call(name, arguments)]


GLM = BlockFormat((CallBlock("<tool_call>", "</tool_call>", _read),))
GLM_CALLS = (
    (
        "",
        CallForm(
            "<tool_call>",
            "\n",
            "</tool_call>",
            between="\n",
            mark="<tool_call>",
            parameter=ParameterForm(
                _KEY, f"{_END_KEY}\n{_VALUE}", f"{_END_VALUE}\n", (_KEY, _END_KEY, _VALUE, _END_VALUE, "</tool_call>")
            ),
        ),
    ),
)
