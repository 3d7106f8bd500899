"""The generation on engines elsewhere, as the fleet asks for it: `onward.wiring` chooses who speaks to them."""

from collections.abc import AsyncGenerator
from typing import Protocol

from core.operations.fleet import NamedVersion
from core.ports import GenerateRequest, TokenChunk


class RemoteGeneration(Protocol):
    """One request to one engine. `stream` it once."""

    @property
    def heard_s(self) -> float:
        """When the engine last said something, on `time.monotonic`."""
        ...

    def stream(self) -> AsyncGenerator[TokenChunk, None]:
        """Stream an answer as core.ports.Policy does; closing it aborts the request on the engine.

        Raises EngineUnavailable at any time, InvalidRequest before the first chunk."""
        ...

    def give_up(self) -> None:
        """Let `stream` raise EngineUnavailable, though nothing was heard."""
        ...


class RemoteEngines(Protocol):
    """The connections to all engines of a fleet, opened and closed on one event loop."""

    @property
    def dtype(self) -> str:
        """The number format that the engines compute in, as torch names it."""
        ...

    def generation(self, url: str, request: GenerateRequest, named: NamedVersion | None = None) -> RemoteGeneration:
        """Return the generation of an answer on the engine at `url`, by the `named` version or the one that serves."""
        ...

    async def aclose(self) -> None: ...
