"""Text for terminals: what users and models wrote is printed whole where it is piped, and commands no terminal."""

import unicodedata
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult

_WIDE = 100_000  # where nobody looks, no line is folded
_UNSEEN = ("Cc", "Cf")  # kinds of characters that act, and are not seen: escapes of terminals, turns of direction
_USUAL = "\n\t\u200c\u200d"  # the latter two join letters, and parts of pictures


def console(*, soft_wrap: bool = False) -> Console:
    """Return a console on which names are shown as they are, and which folds lines only where a terminal would.

    What users and models wrote cannot command the terminal: see `visible`."""
    found = Console(markup=False, highlight=False, soft_wrap=soft_wrap)
    if not found.is_terminal:
        found = Console(markup=False, highlight=False, soft_wrap=soft_wrap, width=_WIDE)
    found.push_render_hook(_Visibly())
    return found


def visible(text: str) -> str:
    r"""Return a text in which characters that act on a terminal, and are not seen, stand as their escapes (`\x1b`)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each.encode("unicode_escape").decode("ascii") if acts(each) else each for each in text)


def acts(character: str) -> bool:
    """Return whether a character acts on a terminal, and is not seen."""
    return character not in _USUAL and unicodedata.category(character) in _UNSEEN


class _Visibly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(each) for each in renderables]


@dataclass
class _Visible:
    """Something shown, without what would act on the terminal; colours are added behind it."""

    shown: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.shown, options):
            yield part if part.control else part._replace(text=visible(part.text))
