"""The application under a real server, over the real log, writer and store; only the model is scripted."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
import uvloop
from byte_renderer import ByteRenderer
from ready_stores import open_ready
from scripted_policy import ScriptedPolicy
from sqlalchemy import select
from stepping import step

from api.access.services import ApiServices
from api.app import create_app
from api.http.connections import bounded_protocol
from api.live_state.memory import MemoryLiveState
from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.errors import LogUnavailable, StoreUnavailable
from core.events import Completion, Event, Outcome, Topic
from core.ids import InferenceId
from core.operations.fleet import LIVE, Assignment, Order
from core.ports import Clock, Drafts, LiveState, Policy, Position, Renderer
from core.records.audit_head import HeadFile
from core.reward_spec import RewardSpec
from core.settings import (
    ApiSettings,
    AuditSettings,
    ConnectionSettings,
    IngestSettings,
    PrivacySettings,
    QuotaSettings,
    TlsSettings,
)
from core.store import SqlStore
from core.store.database import tables
from core.store.work import View, Work
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer
from learner.versions.exclusion_orders import OrdersOfExclusions
from onward.http.tls import server_context

MODEL = "scripted"
WAIT_S = 120
_SEND_BUFFER = 16 << 10  # of the system, for each connection: so small that what nobody reads soon fills it
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1, "meaning": "It was taken."},
            "edited": {"type": "number", "weight": 0.5, "minimum": 0, "maximum": 1, "measure": "kept"},
            "edit_distance": {"type": "number", "weight": 0.5, "measure": "distance", "optimize": "min"},
            "survived_1h": {"type": "number", "weight": 0.5, "minimum": 0, "maximum": 1, "measure": "survived"},
            "plan_useful": {"type": "boolean", "weight": 0.5, "level": "inference"},
            "shipped": {"type": "boolean", "weight": 0.5, "level": "session"},
            "rating": {"type": "number", "weight": 1},
            "comment": {"type": "text"},
            "demonstration": {"type": "demonstration"},
        }
    }
)


def wait_for(condition: Callable[[], Any], what: str = "the condition") -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {WAIT_S} s")
        time.sleep(0.005)
    return value


class BreakableLog:
    """The real log, until `broken` is set."""

    def __init__(self, log: SqliteEventLog) -> None:
        self._log = log
        self.broken = False

    async def append(self, topic: Topic, event: Event) -> Position:
        if self.broken:
            raise LogUnavailable("the disk is full")
        return await self._log.append(topic, event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class BreakableStore:
    """The real store, until `broken` is set (for the API; the writer has the store itself)."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.begin = store.begin
        self.broken = False
        self.read_only = False
        self.looks = 0

    def look(self) -> AbstractContextManager[View]:
        self.looks += 1
        if self.broken:
            raise StoreUnavailable("the store does not answer")
        return self._store.look()

    def work(self) -> AbstractContextManager[Work]:
        if self.read_only:
            raise StoreUnavailable("the store takes nothing")
        return self._store.work()

    def wake(self, woken: threading.Event) -> None:
        self._store.wake(woken)

    @property
    def wakes(self) -> bool:
        return self._store.wakes

    def close(self) -> None:
        self._store.close()


@dataclass
class ScriptedTraffic:
    """Traffic that assigns every unit to one arm."""

    assignment: Assignment = LIVE
    units: list[str] = field(default_factory=list)

    def assign(self, unit: str) -> Assignment:
        self.units.append(unit)
        return self.assignment


class ScriptedController:
    """A controller that answers the orders in the store as scripted, within its context."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.done: list[Order] = []
        self.refuse_with: tuple[str, str] | None = None
        self.silent = False

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            with self._store.look() as view:
                waiting = view.orders.unfinished("local")
            for order in () if self.silent else waiting:
                self.done.append(order)
                with self._store.work() as work:
                    work.orders.finish(order.order_id, order_time(), *(self.refuse_with or (None, None)))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def order_time() -> datetime:
    return SystemClock().now()


class ForgetfulLiveState(MemoryLiveState):
    """A live state that can lose everything at once, as a cache may."""

    def forget(self) -> None:
        self.__dict__.update(MemoryLiveState().__dict__)


@dataclass
class Service:
    url: str
    services: ApiServices
    policy: ScriptedPolicy
    log: BreakableLog
    store: BreakableStore
    live_state: Any  # a ForgetfulLiveState, unless another was given
    states: dict[str, str]
    traffic: "ScriptedTraffic"
    orders: "ScriptedController"
    writing: "Switch"
    http: httpx.Client
    clients: ExitStack

    def client(self, **options: Any) -> openai.OpenAI:
        """Return a client of the official library, which is closed when the service ends."""
        options = {"api_key": "any", "max_retries": 0, **options}
        return self.clients.enter_context(openai.OpenAI(base_url=f"{self.url}/v1", **options))

    def chat(self, *messages: Any, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("hi",)]
        body = {"model": MODEL, "messages": said, **fields}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, json=body, headers=named)

    def get(self, path: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.get(path, headers=named)

    def delete(self, path: str, **headers: str) -> httpx.Response:
        return self.http.delete(path, headers=headers)

    def turn(self, inference_id: str) -> Completion:
        """Return the turn once the writer has stored it."""

        def find() -> Completion | None:
            with self.store.work() as work:
                return work.turns.get_many([InferenceId(inference_id)]).get(InferenceId(inference_id))

        found: Completion = wait_for(find, f"turn {inference_id}")
        return found

    def all_turns(self) -> list[Completion]:
        with self.store.begin() as connection:
            ids = [InferenceId(row[0]) for row in connection.execute(select(tables.turns.c.inference_id))]
            return list(Work(connection).turns.get_many(ids).values())

    def outcomes(self) -> list[Outcome]:
        with self.store.begin() as connection:
            rows = connection.execute(select(tables.outcomes.c.namespace, tables.outcomes.c.outcome_id)).all()
            found = [Work(connection).outcomes.get(row.namespace, row.outcome_id) for row in rows]
        return [outcome[0] for outcome in found if outcome is not None]


class _SoonAsyncio:
    """All of asyncio, but for uvicorn's pauses: it looks every tenth of a second whether it shall end, here oftener."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


uvicorn.server.asyncio = _SoonAsyncio()  # type: ignore[assignment]


@contextmanager
def running(
    *apps: Any, connections: ConnectionSettings | None = None, port: int = 0, tls: TlsSettings | None = None
) -> Iterator[list[str]]:
    """Serve each app under uvicorn, as in production, on one event loop in a thread; yield their URLs."""
    listeners = [socket.create_server(("127.0.0.1", port)) for _ in apps]
    for listener in listeners:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop leaves it off for sockets it is given
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    bounds = connections or ConnectionSettings()
    options: dict[str, Any] = {"ws": "none", "access_log": False, "log_level": "critical", "timeout_keep_alive": 80}
    if context := server_context(tls or TlsSettings()):
        options["ssl_context_factory"] = lambda _config, _default: context
    servers = [uvicorn.Server(uvicorn.Config(app, http=bounded_protocol(bounds), **options)) for app in apps]

    async def work() -> None:
        await asyncio.gather(*(s.serve(sockets=[at]) for s, at in zip(servers, listeners, strict=True)))

    thread = threading.Thread(target=lambda: uvloop.run(work()), daemon=True)
    thread.start()
    try:
        wait_for(lambda: all(server.started for server in servers), "the servers' start")
        yield [f"{'https' if context else 'http'}://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(WAIT_S)
        for listener in listeners:
            listener.close()


class Switch(threading.Event):
    """The writer's switch: once it is cleared, nothing more is written."""

    def __init__(self) -> None:
        super().__init__()
        self.working = threading.Lock()

    def clear(self) -> None:
        super().clear()
        with self.working:
            pass


@contextmanager
def writing(writer: Writer, on: Switch) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            if on.wait(0.02):
                with on.working:
                    if on.is_set():
                        step(writer, 0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        writer.close()


@contextmanager
def serve(
    directory: Path,
    renderer: Renderer | None = None,
    reader: Sequence[str] = (),
    site: Path | None = None,
    policy: Policy | None = None,
    port: int = 0,
    spec: RewardSpec = SPEC,
    clock: Clock | None = None,
    audit: AuditSettings | None = None,
    privacy: PrivacySettings | None = None,
    opened: SqlStore | None = None,
    quotas: QuotaSettings | None = None,
    drafts: Drafts | None = None,
    user_share: float = 1.0,
    **settings: Any,
) -> Iterator[Service]:
    parts: dict[str, Any] = {"reader": reader, "site": site, "policy": policy, "port": port}
    parts |= {"spec": spec, "clock": clock, "audit": audit, "privacy": privacy, "opened": opened, "quotas": quotas}
    parts |= {"drafts": drafts, "user_share": user_share}
    with serve_replicas(directory, 1, renderer, **parts, **settings) as (service,):
        yield service


@contextmanager
def serve_replicas(
    directory: Path,
    count: int,
    renderer: Renderer | None = None,
    live_states: Sequence[LiveState] | None = None,
    reader: Sequence[str] = (),
    site: Path | None = None,
    policy: Policy | None = None,
    port: int = 0,
    spec: RewardSpec = SPEC,
    clock: Clock | None = None,
    audit: AuditSettings | None = None,
    privacy: PrivacySettings | None = None,
    opened: SqlStore | None = None,
    quotas: QuotaSettings | None = None,
    drafts: Drafts | None = None,
    user_share: float = 1.0,
    **settings: Any,
) -> Iterator[list[Service]]:
    """Serve applications that share log and store and, unless each is given one, the live state.

    The store is a file in the directory, unless one is given that is `opened`.

    Each has a scripted model of its own, unless a `policy` answers."""
    directory.mkdir(exist_ok=True)
    ingest = IngestSettings(poll_s=0.005)
    real_log = SqliteEventLog(directory / "log.db", ingest.partitions, ingest.poll_s)
    real_store = opened or open_ready(directory / "store.db")
    log, store = BreakableLog(real_log), BreakableStore(real_store)
    states_of: Sequence[Any] = live_states or [ForgetfulLiveState()] * count
    states = {"writer": "ok"}
    traffic, orders = ScriptedTraffic(), ScriptedController(real_store)
    policies = [ScriptedPolicy() for _ in range(count)]
    parts = [
        ApiServices(
            settings=ApiSettings(**settings),
            log=log,
            store=store,
            live_state=live_state,
            policy=policy or scripted,
            renderer=renderer or ByteRenderer(),
            spec=spec,
            clock=clock or SystemClock(),
            model_name=MODEL,
            cluster="local",
            readiness=lambda: states,
            traffic=traffic,
            reader=reader,
            site=site,
            audit=audit or AuditSettings(),
            privacy=privacy or PrivacySettings(),
            quotas=quotas or QuotaSettings(),
            drafts=drafts,
            exclusions=OrdersOfExclusions(store, FsspecBlobs(directory / "blobs"), "local", clock or SystemClock()),
            user_share=user_share,
            head=HeadFile(directory / "head.json"),
            readers={"writer": Topic.TURNS, "scorer": Topic.TURNS, "judge": Topic.TURNS},
        )
        for scripted, live_state in zip(policies, states_of, strict=True)
    ]
    on = Switch()
    on.set()
    try:
        with (
            writing(Writer(real_log, real_store, ingest, SystemClock()), on),
            orders,
            running(
                *map(create_app, parts),
                connections=parts[0].settings.connections,
                port=port,
                tls=parts[0].settings.tls,
            ) as urls,
            ExitStack() as clients,
        ):
            https = [clients.enter_context(_client(url)) for url in urls]
            yield [
                Service(url, services, policy, log, store, live_state, states, traffic, orders, on, http, clients)
                for url, services, policy, live_state, http in zip(urls, parts, policies, states_of, https, strict=True)
            ]
    finally:
        real_log.close()
        real_store.close()


def _client(url: str) -> httpx.Client:
    """Return a client that sends everything as JSON; plain HTTP saves the TLS set-up."""
    return httpx.Client(base_url=url, timeout=WAIT_S, verify=False, headers={"content-type": "application/json"})
