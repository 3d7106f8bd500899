"""What every process of one directory shares: settings, log, store, blobs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.errors import ConfigError
from core.reward_spec import RewardSpec, load_reward_spec
from core.settings import Settings, load_settings
from core.store import SqlStore, open_sqlite
from ingest.sqlite_log import SqliteEventLog
from onward.layout import SHIPPED_MODEL, SHIPPED_REWARDS, Layout
from serving.weights import BlobWeights


class Stage(Protocol):
    """A background part of the product; the runtime calls `step` until told to stop."""

    def step(self, timeout_s: float) -> int:
        """Do what is there to do; wait at most about `timeout_s` for it. Returns how much was done."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Foundation:
    layout: Layout
    settings: Settings
    overrides: Mapping[str, str]
    """Settings as environment variables would say them: for the processes that this one starts."""
    spec: RewardSpec
    clock: SystemClock
    log: SqliteEventLog
    store: SqlStore
    blobs: FsspecBlobs
    weights: BlobWeights

    @property
    def model(self) -> Path:
        return self.settings.serving.model or SHIPPED_MODEL

    def close(self) -> None:
        self.log.close()
        self.store.close()


def open_foundation(root: Path, overrides: Mapping[str, str] | None = None) -> Foundation:
    """Open, or make, a service's directory. Raises ConfigError naming the setting or file at fault.

    `overrides` win over everything else.
    """
    layout = Layout(root.resolve())
    layout.ensure()
    settings = load_settings(layout.settings, {**os.environ, **(overrides or {})})
    match settings.mode:
        case "embedded":
            log = SqliteEventLog(layout.log, settings.ingest.partitions, settings.ingest.poll_s)
            store = open_sqlite(layout.store)
            blobs = FsspecBlobs(settings.blobs or layout.blobs, layout.cache)
        case "distributed":
            raise ConfigError("mode: this build has no distributed adapters yet")
    serving = settings.serving
    return Foundation(
        layout=layout,
        settings=settings,
        overrides=dict(overrides or {}),
        spec=load_reward_spec(_spec_path(layout, settings)),
        clock=SystemClock(),
        log=log,
        store=store,
        blobs=blobs,
        weights=BlobWeights(blobs, layout.cache / "weights", serving.anchor_every, serving.cached_versions),
    )


def _spec_path(layout: Layout, settings: Settings) -> Path:
    if settings.scoring.spec is not None:
        return settings.scoring.spec
    return layout.rewards if layout.rewards.exists() else SHIPPED_REWARDS
