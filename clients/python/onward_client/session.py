"""One conversation, or one editing session: the headers of its requests."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

C = TypeVar("C")


class Wrappable(Protocol):
    """What is needed of a client of the `openai` or the `anthropic` package, sync or async."""

    def with_options(self, *, default_headers: Mapping[str, str]) -> Any: ...


W = TypeVar("W", bound=Wrappable)


def new_session_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Session(Generic[C]):
    """A session of the service, for whose turns feedback may be given as a whole.

    `learn` False withdraws the consent to learn from its turns; `workload` says what they are for; `harness` names the
    program and its version; `environment` is `production` or `simulated`."""

    make_openai: Callable[[Mapping[str, str]], C] = field(repr=False)
    session_id: str = field(default_factory=new_session_id)
    learn: bool = True
    workload: str | None = None
    harness: str | None = None
    environment: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that put a request into this session."""
        given = {
            "x-session-id": self.session_id,
            "x-onward-learn": None if self.learn else "false",
            "x-onward-workload": self.workload,
            "x-onward-harness": self.harness,
            "x-onward-environment": self.environment,
        }
        return {name: value for name, value in given.items() if value is not None}

    def openai(self) -> C:
        """Return an `openai` client of the service whose requests belong to this session.

        Raises ImportError where the package `openai` is not installed."""
        return self.make_openai(self.headers)

    def wrap(self, client: W) -> W:
        """Return a copy of an `openai` or `anthropic` client whose requests belong to this session.

        Its URL, its key and its other headers stay."""
        wrapped: W = client.with_options(default_headers=self.headers)
        return wrapped

    def without_consent(self) -> "Session[C]":
        """Return the same session, from whose further turns nothing is learned."""
        return replace(self, learn=False)
