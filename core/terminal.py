"""Text for terminals: what users and models wrote is not folded in a pipe, and cannot control the terminal."""

import unicodedata
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult

_WIDE = 100_000  # columns outside of a terminal, where no line is folded
_UNSEEN = ("Cc", "Cf")  # Unicode categories of invisible characters that act, such as escapes and changes of direction
_USUAL = "\n\t\u200c\u200d"  # the last two join letters, and parts of emoji


def console(*, soft_wrap: bool = False) -> Console:
    """Return a console that prints text without markup, and folds lines only in a terminal.

    What users and models wrote cannot control the terminal: see `visible`."""
    found = Console(markup=False, highlight=False, soft_wrap=soft_wrap)
    if not found.is_terminal:
        found = Console(markup=False, highlight=False, soft_wrap=soft_wrap, width=_WIDE)
    found.push_render_hook(_Visibly())
    return found


def visible(text: str) -> str:
    r"""Return the text with invisible characters that act on a terminal written as escapes, such as `\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each.encode("unicode_escape").decode("ascii") if acts(each) else each for each in text)


def acts(character: str) -> bool:
    """Return whether a character is invisible and acts on a terminal."""
    return character not in _USUAL and unicodedata.category(character) in _UNSEEN


class _Visibly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(each) for each in renderables]


@dataclass
class _Visible:
    """A renderable whose text cannot act on the terminal; colours are added afterwards."""

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.shown, options):
            yield part if part.control else part._replace(text=visible(part.text))
