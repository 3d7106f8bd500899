"""Settings: one frozen model per stage, from `onward.toml` and the environment, read once.

A value comes from the environment (`ONWARD_API__PORT=9000`), else from the file, else from the default here.
Unknown keys are refused in both. Every field is documented in docs/settings.md, which a test holds against this file.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from core.errors import ConfigError
from core.section import Section
from core.settings.archive import ArchiveSettings
from core.settings.http.api import (
    WORKLOAD_NAME,
    ApiKey,
    ApiSettings,
    NamespaceSettings,
    RateLimit,
    Scope,
    WorkloadSettings,
)
from core.settings.http.bodies import BodySettings
from core.settings.http.connections import ConnectionSettings
from core.settings.http.metrics import MetricsSettings
from core.settings.ingest import IngestSettings
from core.settings.judge import JudgeSettings
from core.settings.learner import LearnerSettings
from core.settings.monitors import MonitorSettings
from core.settings.processes import ProcessSettings
from core.settings.release import EvalSettings, ReleaseSettings
from core.settings.scoring import ScoringSettings
from core.settings.services.kafka import KafkaSettings
from core.settings.services.postgres import PostgresSettings
from core.settings.services.redis import RedisSettings
from core.settings.serving import ServingSettings, SglangSettings
from core.settings.stages import StageSettings

PREFIX = "ONWARD_"
NOT_SETTINGS = frozenset({"ONWARD_KEY", "ONWARD_REQUIRE_SERVICES"})  # of the command line; the tests' own switch

__all__ = [
    "WORKLOAD_NAME",
    "ApiKey",
    "ApiSettings",
    "ArchiveSettings",
    "BodySettings",
    "ConnectionSettings",
    "EvalSettings",
    "IngestSettings",
    "JudgeSettings",
    "KafkaSettings",
    "LearnerSettings",
    "MetricsSettings",
    "MonitorSettings",
    "NamespaceSettings",
    "PostgresSettings",
    "ProcessSettings",
    "RateLimit",
    "RedisSettings",
    "ReleaseSettings",
    "Scope",
    "ScoringSettings",
    "ServingSettings",
    "Settings",
    "SglangSettings",
    "StageSettings",
    "WorkloadSettings",
    "load_settings",
]


class Settings(Section):
    mode: Literal["embedded", "distributed"] = "embedded"
    """Which adapters: one process tree and one directory, or Kafka, Postgres and Redis."""
    blobs: str | None = None
    """Where weights, manifests and probes are kept: a directory, or a URL (`s3://bucket/prefix`, `gs://bucket/prefix`,
    by the extras `s3` and `gcs`); None: `blobs` in the service's directory."""
    api: ApiSettings = ApiSettings()
    ingest: IngestSettings = IngestSettings()
    archive: ArchiveSettings = ArchiveSettings()
    scoring: ScoringSettings = ScoringSettings()
    monitors: MonitorSettings = MonitorSettings()
    """What the model and its users are watched for."""
    judge: JudgeSettings = JudgeSettings()
    """Who else says how good answers are."""
    learner: LearnerSettings = LearnerSettings()
    serving: ServingSettings = ServingSettings()
    release: ReleaseSettings = ReleaseSettings()
    kafka: KafkaSettings = KafkaSettings()
    """The log of mode `distributed`."""
    postgres: PostgresSettings = PostgresSettings()
    """Its store."""
    redis: RedisSettings = RedisSettings()
    """Its live state."""
    processes: ProcessSettings = ProcessSettings()
    """How many of each stage `onward run` starts in that mode."""
    stages: StageSettings = StageSettings()
    """How they go on at what fails them."""
    metrics: MetricsSettings = MetricsSettings()
    """What stages that run alone show of themselves."""


def load_settings(file: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Raises ConfigError naming the key. A `file` of None or one that does not exist counts as empty."""
    values: dict[str, Any] = {}
    if file is not None and file.exists():
        try:
            values = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
    for name, text in sorted(environment.items()):  # a section's own name before its keys: a clash is seen
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            _place(values, name.removeprefix(PREFIX).lower().split("__"), _parse(text))
    try:
        return _kept_out(Settings.model_validate(values))
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError("settings: " + "; ".join(lines)) from error


def _kept_out(settings: Settings) -> Settings:
    """What versions are asked before users have them is not learned by heart, unless another suite is kept out."""
    suite, learner = settings.release.evals.suite, settings.learner
    if suite is None or learner.keep_out is not None:
        return settings
    return settings.model_copy(update={"learner": learner.model_copy(update={"keep_out": suite})})


def _place(values: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, leaf = path
    for key in parents:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise ConfigError(f"settings: {'.'.join(path)}: {key} is no section")
    values[leaf] = value


def _parse(text: str) -> Any:
    """An environment value is TOML where it reads as such (numbers, booleans, lists), else plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
