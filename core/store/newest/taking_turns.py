"""Several in an order in which all take turns: namespaces, and within each of them its users; and none a majority."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import TypeVar

from core.ids import Namespace

T = TypeVar("T")


def taking_turns(each: Iterable[tuple[Namespace, str, T]]) -> list[T]:
    """Order what is given with its namespace and user: the first of all users, then the second, and so on."""
    had: Counter[tuple[Namespace, str]] = Counter()
    by_namespace: dict[Namespace, list[tuple[int, T]]] = {}
    for namespace, user, one in each:
        by_namespace.setdefault(namespace, []).append((had[namespace, user], one))
        had[namespace, user] += 1
    by_turns = (sorted(own, key=itemgetter(0)) for own in by_namespace.values())
    return [found[1] for together in zip_longest(*by_turns) for found in together if found is not None]


def without_a_majority(each: Sequence[tuple[Hashable, T]]) -> list[T]:
    """Return what is given with its speaker, but for the last of whoever has more than all others have together."""
    (speaker, count), *_ = Counter(speaker for speaker, _ in each).most_common(1) or [(None, 0)]
    room = (len(each) - count) or count  # of one who is alone all
    kept = []
    for its, one in each:
        room -= its == speaker
        if its != speaker or room >= 0:
            kept.append(one)
    return kept
