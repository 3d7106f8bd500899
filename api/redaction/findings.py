"""Parts of a text that are to be redacted, and how several that overlap become one."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["SECRET", "EMAIL", "PHONE", "IBAN", "CARD", "ID", "IP", "NAME", "ADDRESS"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}


class SensitiveSpan(NamedTuple):
    """Characters [start, end) of a text, and what they are."""

    start: int
    end: int
    kind: Kind


def finding(match: Any, group: int, kind: Kind) -> SensitiveSpan:
    """Return what a group of a match found."""
    start, end = match.span(group)
    return SensitiveSpan(start, end, kind)


def apart(findings: Iterable[SensitiveSpan]) -> list[SensitiveSpan]:
    """Return findings that do not overlap, in order: those that do are one, of the kind that is listed first."""
    merged: list[SensitiveSpan] = []
    for each in sorted(findings):
        if merged and each.start < merged[-1].end:
            last = merged[-1]
            kind = min(last.kind, each.kind, key=_RANK.__getitem__)
            merged[-1] = SensitiveSpan(last.start, max(last.end, each.end), kind)
        elif each.start < each.end:
            merged.append(each)
    return merged
