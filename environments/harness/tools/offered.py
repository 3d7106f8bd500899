"""All tools, in the order in which the model is shown them: the usual ones, or those of a line editor."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from environments.harness.tools.files import EDIT, READ, WRITE
from environments.harness.tools.lines import LINES
from environments.harness.tools.names import FIND, GREP
from environments.harness.tools.programs import DONE, LINT, RUN_TESTS, TERMINAL
from environments.harness.tools.search import SEARCH
from environments.harness.tools.tool import HarnessTool

ToolSet = Literal["usual", "lines"]

ALL = (READ, EDIT, WRITE, FIND, GREP, SEARCH, TERMINAL, RUN_TESTS, LINT, DONE)
_SETS: Final[Mapping[ToolSet, tuple[HarnessTool, ...]]] = {"usual": ALL, "lines": LINES}


def tools_of(names: Sequence[str] | None, tool_set: ToolSet = "usual") -> tuple[HarnessTool, ...]:
    """Return the tools of those names in a set; None: all. Raises ValueError for a name that is no tool's."""
    by_name = {tool.name: tool for tool in _SETS[tool_set]}
    if names is None:
        return tuple(by_name.values())
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"tools: there is no {unknown[0]!r}; there are {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)
