"""The HTTP API as one version answers it, for agents that work on a suite's tasks.

It is the service's own application, with a log and a store that are deleted with it: an agent is served as by the
service, token for token, and nobody learns from what it says."""

import asyncio
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvicorn

from api.access.services import ApiServices
from api.app import create_app
from api.http.connections import bounded_protocol
from api.live_state.memory import MemoryLiveState
from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.events import Sampling
from core.ids import BASE, Namespace, PolicyName, PolicyRef
from core.operations.fleet import LIVE, Assignment
from core.ports import GenerateRequest, Policy, Renderer, TokenChunk
from core.reward_spec import RewardSpec
from core.settings import ApiSettings
from core.settings.http.api import ApiKey
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog

_START_POLL_S = 0.01
_LOG_POLL_S = 0.05


@dataclass(frozen=True)
class VersionAddress:
    """Where a version is asked; `base_url` ends in /v1."""

    base_url: str
    api_key: str | None
    model: str


class OneVersion(Policy):
    """A policy that is one version, whatever is live, for requests that are nobody's."""

    def __init__(self, policy: Policy, version: PolicyRef) -> None:
        self._policy, self._version = policy, version

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        return self._policy.generate(msgspec.structs.replace(request, version=self._version, is_case=True))

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        return self._policy.untrainable(sampling)

    @property
    def live_version(self) -> PolicyRef:
        return self._version

    def live_of(self, policy: PolicyName) -> PolicyRef:
        return self._version

    @property
    def context_length(self) -> int:
        return self._policy.context_length


class _NoArms:
    def assign(self, unit: str, policy: PolicyName = BASE, namespace: Namespace | None = None) -> Assignment:
        return LIVE


class _Server(uvicorn.Server):
    """A server that leaves signals to the command that it is a part of.

    uvicorn's own would take an interrupt for itself, and let the command work on without it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_version(
    policy: Policy, version: PolicyRef, renderer: Renderer, spec: RewardSpec, model: str
) -> AsyncIterator[VersionAddress]:
    """Serve the version on loopback, to whoever has the key, in the running event loop."""
    key = secrets.token_urlsafe(24)
    settings = ApiSettings(port=0, keys=(ApiKey(key=key, namespace="suite"),))
    with (
        tempfile.TemporaryDirectory(prefix="onward-suite-") as place,
        closing(SqliteEventLog(Path(place) / "log.db", 1, _LOG_POLL_S)) as log,
        closing(open_sqlite(Path(place) / "store.db")) as store,
        closing(socket.create_server((settings.host, 0))) as listener,
    ):
        app = create_app(
            ApiServices(
                settings=settings,
                log=log,
                store=store,
                blobs=FsspecBlobs(Path(place) / "blobs"),
                live_state=MemoryLiveState(),
                policy=OneVersion(policy, version),
                renderer=renderer,
                spec=spec,
                clock=SystemClock(),
                model_name=model,
                cluster="suite",
                readiness=_ready,
                traffic=_NoArms(),
                readers={},
            )
        )
        server = _Server(
            uvicorn.Config(
                app,
                http=bounded_protocol(settings.connections),
                ws="none",
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_graceful_shutdown=5,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not serving.done():  # uvicorn sets a flag and wakes nobody
                await asyncio.wait([serving], timeout=_START_POLL_S)
            yield VersionAddress(f"http://{settings.host}:{listener.getsockname()[1]}/v1", key, model)
        finally:
            server.should_exit = True
            await serving


def _ready() -> Mapping[str, str]:
    return {}
