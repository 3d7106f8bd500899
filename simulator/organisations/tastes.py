"""Organisations whose teams like different code, so that no single policy can please two of them."""

from simulator.tasks.sampling import REPOS
from simulator.tasks.taste import Style, Taste
from simulator.tasks.templates import TEMPLATES

_ALL_TYPES = frozenset(template.returns for template in TEMPLATES)
_NAMES = ("acme", "bolt", "cask", "dune")
_STYLES = (Style(True, True), Style(False, False), Style(False, True), Style(True, False))
MOST = len(_STYLES)


def taste_for(style: Style) -> Taste:
    """Return the taste of a team that likes one style in everything."""
    hinted = frozenset(REPOS) if style.hints else frozenset[str]()
    return Taste(hinted=hinted, one_line=_ALL_TYPES if style.one_liner else frozenset[str]())


def organisations(count: int) -> dict[str, Style]:
    """Return the style that each of so many organisations likes. Raises ValueError for fewer than 2 or more than 4."""
    if not 2 <= count <= MOST:
        raise ValueError(f"{count} organisations: there are tastes for 2 to {MOST} of them")
    return dict(zip(_NAMES[:count], _STYLES, strict=False))


def said(style: Style) -> str:
    return f"{'hints' if style.hints else 'no hints'}, {'one line' if style.one_liner else 'loops'}"
