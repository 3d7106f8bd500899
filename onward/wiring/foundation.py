"""The foundation that every process shares: settings, log, store, blobs."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core import secrets
from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.ports import EventLog
from core.reward_spec import RewardSpec, load_reward_spec
from core.reward_spec.outcome_ages import with_ages
from core.settings import Settings, load_settings
from core.settings.secret import secrets_of
from core.store import SqlStore
from onward.directory.layout import SHIPPED_MODEL, SHIPPED_REWARDS, Layout
from onward.wiring.disk import tell_of_disk
from serving.weights.published import BlobWeights


@dataclass(frozen=True)
class Foundation:
    layout: Layout
    settings: Settings
    overrides: Mapping[str, str]
    """Settings as environment variables would say them: for the processes that this one starts."""
    spec: RewardSpec
    clock: SystemClock
    log: EventLog
    store: SqlStore
    blobs: FsspecBlobs
    weights: BlobWeights
    is_shared: bool
    """Whether other machines work on the same log and store: what there may be one of is then leased."""

    @property
    def model(self) -> Path:
        return self.settings.serving.model or SHIPPED_MODEL

    def close(self) -> None:
        self.log.close()
        self.store.close()


def open_foundation(root: Path, overrides: Mapping[str, str] | None = None) -> Foundation:
    """Open or create a service's directory, and the log, store and blobs that its settings name.

    `overrides` win over everything else. Raises ConfigError naming the setting or file at fault, StoreUnavailable."""
    layout, settings = read_directory(root, overrides)
    tell_of_disk(layout.root)
    return _found(layout, settings, dict(overrides or {}))


def open_offline(root: Path) -> Foundation:
    """Open a directory that contains everything, whatever services and blobs its settings name."""
    layout, settings = read_directory(root)
    return _found(layout, settings.model_copy(update={"mode": "embedded", "blobs": None}), {})


def _found(layout: Layout, settings: Settings, overrides: Mapping[str, str]) -> Foundation:
    spec = load_reward_spec(spec_path(layout, settings))
    settings = settings.model_copy(update={"learner": with_ages(settings.learner, spec)})
    store = open_store(layout, settings)
    log = _open_log(layout, settings)
    blobs = FsspecBlobs(settings.blobs or layout.blobs, layout.cache)
    serving = settings.serving
    return Foundation(
        layout=layout,
        settings=settings,
        overrides=overrides,
        spec=spec,
        clock=SystemClock(),
        log=log,
        store=store,
        blobs=blobs,
        weights=BlobWeights(blobs, layout.cache / "weights", serving.versions.anchor_every, serving.versions.cached),
        is_shared=is_distributed(settings),
    )


def read_directory(root: Path, overrides: Mapping[str, str] | None = None) -> tuple[Layout, Settings]:
    """Return a directory's layout and settings, creating the directory if there is none. Raises ConfigError."""
    Layout.of(root).ensure()
    return look_at_directory(root, overrides)


def look_at_directory(root: Path, overrides: Mapping[str, str] | None = None) -> tuple[Layout, Settings]:
    """Return the same of a directory that may not be there, and leave it so. Raises ConfigError."""
    layout = Layout.of(root)
    settings = _publishing_as_served(load_settings(layout.settings, {**os.environ, **(overrides or {})}))
    secrets.keep(secrets_of(settings))
    return layout, settings


def _publishing_as_served(settings: Settings) -> Settings:
    """Return the settings of a learner that publishes what the engines compute in, unless they say something else."""
    if settings.learner.compute.published is not None:
        return settings
    serving = settings.serving
    dtype = serving.sglang.dtype if serving.engine == "sglang" else serving.local.dtype
    compute = settings.learner.compute.model_copy(update={"published": dtype})
    return settings.model_copy(update={"learner": settings.learner.model_copy(update={"compute": compute})})


def is_distributed(settings: Settings) -> bool:
    return settings.mode == "distributed"


def open_store(layout: Layout, settings: Settings) -> SqlStore:
    """Open the store of the settings' mode. Raises ConfigError, StoreUnavailable."""
    match settings.mode:
        case "embedded":
            from core.store import open_sqlite

            return open_sqlite(layout.store)
        case "distributed":
            from core.store import open_postgres

            return open_postgres(settings.postgres)


def _open_log(layout: Layout, settings: Settings) -> EventLog:
    match settings.mode:
        case "embedded":
            from ingest.sqlite.log import SqliteEventLog

            return SqliteEventLog(layout.log, settings.ingest.partitions, settings.ingest.poll_s)
        case "distributed":
            from ingest.kafka.log import KafkaEventLog

            return KafkaEventLog(settings.kafka)


def holder() -> str:
    """Return this process's name as a holder of leases."""
    return f"{socket.gethostname()}:{os.getpid()}"


def spec_path(layout: Layout, settings: Settings) -> Path:
    if settings.scoring.spec is not None:
        return settings.scoring.spec
    return layout.rewards if layout.rewards.exists() else SHIPPED_REWARDS
