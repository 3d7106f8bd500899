"""Rings: users who try a version one group after another, each for a test of its own, before everybody has it.

Whom a ring names has the version; so does a share of the others, drawn by the hash that draws a canary's. Who has it
keeps it in the next ring: the same salt with a larger share draws the same users and more, and the names add up.
Only who was drawn can be compared with who was not, at the same time and by rewards. Users who are named are others
than the rest, so that a ring of these alone is judged by the guards, once enough of its sessions have been decided.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from core.ids import Namespace, UserHash
from core.operations.fleet import Experiment
from core.settings import RingSettings
from serving.releases.canaries.verdict import CanaryVerdict

_HASH_LENGTH: Final = 32
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_NONE: Final[frozenset[str]] = frozenset()


class Members:
    """Whom the rings of a policy name. Immutable."""

    def __init__(self, rings: Iterable[RingSettings], hash_of: Callable[[Namespace, str], UserHash]) -> None:
        """Make it; `hash_of` tells the hash of a user, by namespace and name."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        places: defaultdict[str, set[str]] = defaultdict(set)
        for ring in rings:
            for place in ring.namespaces:
                places[place].add(ring.name)
            for place, names in ring.users.items():
                for name in names:
                    users[hash_of(Namespace(place), name)].add(ring.name)
                    if len(name) == _HASH_LENGTH and _HEXADECIMAL.issuperset(name):
                        users[name].add(ring.name)
        self._users: Mapping[str, frozenset[str]] = _frozen(users)
        self._places: Mapping[str, frozenset[str]] = _frozen(places)

    def rings_of(self, unit: str, namespace: Namespace | None) -> frozenset[str]:
        """Return the names of the rings that name a user, or the namespace in which it asks."""
        by_place = _NONE if namespace is None else self._places.get(namespace, _NONE)
        return self._users.get(unit, _NONE) | by_place


def _frozen(found: Mapping[str, set[str]]) -> Mapping[str, frozenset[str]]:
    return MappingProxyType({key: frozenset(names) for key, names in found.items()})


def next_ring(rings: Sequence[RingSettings], reached: Collection[str]) -> RingSettings | None:
    """Return the first ring that was not reached; None: next are all."""
    return next((ring for ring in rings if ring.name not in reached), None)


def ring_of(rings: Sequence[RingSettings], experiment: Experiment) -> RingSettings | None:
    """Return the ring under test; None where the settings no longer have it."""
    return next((ring for ring in rings if ring.name == experiment.rings[-1]), None)


def lacking(ring: RingSettings, sessions: int, age_s: float) -> str | None:
    """Return what a ring's test still lacks; None when it may be passed."""
    if sessions < ring.min_sessions:
        return f"{sessions} of {ring.min_sessions} sessions are decided"
    if age_s < ring.min_duration_s:
        return f"{age_s:.0f} of {ring.min_duration_s:g} s have passed"
    return None


def by_guards_alone(sessions: int, lacks: str | None) -> CanaryVerdict:
    """Return the verdict where nobody was drawn, and no guard tripped: there is nothing to compare rewards with."""
    figures = {"sessions": float(sessions)}
    if lacks is not None:
        return CanaryVerdict("wait", lacks, figures)
    return CanaryVerdict("promote", f"no guard tripped, and {sessions} sessions were decided", figures)


def in_ring(experiment: Experiment | None, verdict: CanaryVerdict | None) -> CanaryVerdict | None:
    """Return the verdict with the ring that it is about in its words."""
    if experiment is None or not experiment.rings or verdict is None:
        return verdict
    return replace(verdict, why=f"ring {experiment.rings[-1]}: {verdict.why}")
