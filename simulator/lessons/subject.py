"""A subject that users ask a model about: exercises, and who tells whether an answer is right."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Exercise:
    """One request of a user, who takes an answer that is `right`; `kind` groups exercises in reports.

    `fault`: what the user says of an answer that is not; None: users of this exercise say nothing."""

    kind: str
    messages: tuple[tuple[str, str], ...]  # (role, content)
    right: Callable[[str], Awaitable[bool]]
    fault: Callable[[str], Awaitable[str | None]] | None = None


class Subject(Protocol):
    """Exercises of one subject, of which the held-out ones are never learned from.

    `workload` names them to the service, `stop` ends an answer early, and one that is longer than `max_tokens` is cut
    off."""

    workload: str
    max_tokens: int
    stop: tuple[str, ...]

    def taught(self, seed: int) -> Iterator[Exercise]:
        """Yield exercises to learn from, without end."""
        ...

    def held_out(self, count: int, seed: int) -> list[Exercise]:
        """Return exercises that tell what was learned."""
        ...
