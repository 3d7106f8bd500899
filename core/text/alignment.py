"""The alignment of two texts that are cut into pieces: which pieces of the first one the second one kept."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
from rapidfuzz.distance import Indel


class Replaced(msgspec.Struct, frozen=True):
    """Pieces [start, end) of the first text, in whose place the second has its pieces [new_start, new_end)."""

    start: int
    end: int
    new_start: int
    new_end: int


def aligned(before: Sequence[bytes], after: Sequence[bytes], most: int) -> list[Replaced]:
    """Return at most `most` replacements, in order, that make `after` of `before`; outside of them both are alike.

    Where only the cuts differ, nothing is replaced. As many pieces are kept as can be, by their longest common
    subsequence; but what is kept between two replacements counts as replaced too where it is no longer than either
    (Fraser's semantic cleanup, diff-match-patch): single words in common do not make two texts alike."""
    found = _at_most(most, _joined(_raw(before, after), _Sizes(before, after)))
    return [each for each in found if b"".join(before[each.start : each.end]) != _new(each, after)]


def _raw(before: Sequence[bytes], after: Sequence[bytes]) -> Iterator[Replaced]:
    """Yield what differs; one replacement for what touches."""
    open_one: Replaced | None = None
    for step in Indel.opcodes(before, after):
        if step.tag == "equal":
            if open_one is not None:
                yield open_one
            open_one = None
        else:
            this = Replaced(step.src_start, step.src_end, step.dest_start, step.dest_end)
            open_one = this if open_one is None else _over(open_one, this)
    if open_one is not None:
        yield open_one


class _Sizes:
    """The sizes of runs of pieces, in bytes, each by one subtraction: texts are of strangers, and may be long."""

    def __init__(self, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        self._before, self._after = (list(accumulate(map(len, pieces), initial=0)) for pieces in (before, after))

    def kept(self, start: int, end: int) -> int:
        return self._before[end] - self._before[start]

    def weight(self, each: Replaced) -> int:
        return max(self.kept(each.start, each.end), self._after[each.new_end] - self._after[each.new_start])


def _joined(replaced: Iterator[Replaced], sizes: _Sizes) -> list[Replaced]:
    found: list[Replaced] = []
    for this in replaced:
        while found:
            last = found[-1]
            if sizes.kept(last.end, this.start) > min(sizes.weight(last), sizes.weight(this)):
                break
            this = _over(found.pop(), this)
        found.append(this)
    return found


def _at_most(most: int, found: list[Replaced]) -> list[Replaced]:
    """Return the replacements with those that are closest to each other joined, the first of equals first."""
    gaps = [this.start - last.end for last, this in pairwise(found)]
    closed = set(sorted(range(len(gaps)), key=gaps.__getitem__)[: max(len(found) - most, 0)])
    left = found[:1]
    for gap, this in enumerate(found[1:]):
        if gap in closed:
            this = _over(left.pop(), this)
        left.append(this)
    return left


def _over(first: Replaced, second: Replaced) -> Replaced:
    return Replaced(first.start, second.end, first.new_start, second.new_end)


def _new(each: Replaced, after: Sequence[bytes]) -> bytes:
    return b"".join(after[each.new_start : each.new_end])
