"""Settings: one frozen model per stage, with sections by subject, from `onward.toml` and the environment, read once.

A value comes from the environment (`ONWARD_API__PORT=9000`), else from the file, else from the default here.
Unknown keys are refused in both. Every field is documented in docs/settings.md, which a test holds against this file.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails

from core.errors import ConfigError
from core.section import Section
from core.settings.archive import ArchiveSettings
from core.settings.http.api import (
    KEY_NAME,
    WORKLOAD_NAME,
    AdvancedApiSettings,
    ApiKey,
    ApiSettings,
    FeedbackSettings,
    LowPrioritySettings,
    NamespaceSettings,
    PriceSettings,
    RateLimit,
    Scope,
    TlsSettings,
    WebSettings,
    WorkloadSettings,
)
from core.settings.http.audit import AuditSettings
from core.settings.http.bodies import BodySettings
from core.settings.http.connections import ConnectionSettings
from core.settings.http.metrics import MetricsSettings
from core.settings.http.quotas import Quota, QuotaSettings
from core.settings.ingest import IngestSettings
from core.settings.judge import JudgedTurnSettings, JudgeRequestSettings, JudgeSettings
from core.settings.learner import LearnerSettings
from core.settings.learner.advantage import AdvantageSettings
from core.settings.learner.batches import AdmissionSettings, BatchSettings, UserSettings
from core.settings.learner.mixture import MixtureSettings
from core.settings.learner.objective import CorrectionSettings, KlSettings, ObjectiveSettings
from core.settings.learner.training import (
    JOURNAL_VERSIONS,
    CheckpointSettings,
    ComputeSettings,
    LoraSettings,
    OptimizerSettings,
)
from core.settings.monitors import MonitorSettings
from core.settings.names import paths, place, probably_meant
from core.settings.operations.alerts import AlertSettings, AlertTargetSettings
from core.settings.operations.tracing import TracingSettings
from core.settings.privacy import NamespacePrivacySettings, PrivacySettings
from core.settings.processes import ProcessSettings
from core.settings.release import CanarySettings, EvalSettings, GateSettings, HoldbackSettings, ReleaseSettings
from core.settings.rollouts import (
    EpisodeSettings,
    LentSettings,
    RolloutRequestSettings,
    RolloutSettings,
    TaskSetSettings,
)
from core.settings.scoring import ScoringSettings
from core.settings.services.kafka import (
    KafkaClientSettings,
    KafkaSecuritySettings,
    KafkaSettings,
    KafkaTopicSettings,
)
from core.settings.services.postgres import PostgresSettings
from core.settings.services.redis import RedisSettings
from core.settings.serving import (
    FleetSettings,
    LocalEngineSettings,
    ServingSettings,
    SglangSettings,
    SglangTimeoutSettings,
    VersionSettings,
)
from core.settings.stages import StageSettings

PREFIX = "ONWARD_"
NOT_SETTINGS = frozenset(
    {"ONWARD_KEY", "ONWARD_EVERY_STEP", "ONWARD_REQUIRE_SERVICES", "ONWARD_SMOLLM2"}
)  # the command line's; the tests' own

__all__ = [
    "JOURNAL_VERSIONS",
    "KEY_NAME",
    "WORKLOAD_NAME",
    "AdmissionSettings",
    "AdvancedApiSettings",
    "AdvantageSettings",
    "AlertSettings",
    "AlertTargetSettings",
    "ApiKey",
    "ApiSettings",
    "ArchiveSettings",
    "AuditSettings",
    "BatchSettings",
    "BodySettings",
    "CanarySettings",
    "CheckpointSettings",
    "ComputeSettings",
    "ConnectionSettings",
    "CorrectionSettings",
    "EpisodeSettings",
    "EvalSettings",
    "FeedbackSettings",
    "FleetSettings",
    "GateSettings",
    "HoldbackSettings",
    "IngestSettings",
    "JudgeRequestSettings",
    "JudgeSettings",
    "JudgedTurnSettings",
    "KafkaClientSettings",
    "KafkaSecuritySettings",
    "KafkaSettings",
    "KafkaTopicSettings",
    "KlSettings",
    "LearnerSettings",
    "LentSettings",
    "LocalEngineSettings",
    "LoraSettings",
    "LowPrioritySettings",
    "MetricsSettings",
    "MixtureSettings",
    "MonitorSettings",
    "NamespacePrivacySettings",
    "NamespaceSettings",
    "ObjectiveSettings",
    "OptimizerSettings",
    "PostgresSettings",
    "PriceSettings",
    "PrivacySettings",
    "ProcessSettings",
    "Quota",
    "QuotaSettings",
    "RateLimit",
    "RedisSettings",
    "ReleaseSettings",
    "RolloutRequestSettings",
    "RolloutSettings",
    "Scope",
    "ScoringSettings",
    "ServingSettings",
    "Settings",
    "SglangSettings",
    "SglangTimeoutSettings",
    "StageSettings",
    "TaskSetSettings",
    "TlsSettings",
    "TracingSettings",
    "UserSettings",
    "VersionSettings",
    "WebSettings",
    "WorkloadSettings",
    "load_settings",
]


class Settings(Section):
    mode: Literal["embedded", "distributed"] = "embedded"
    """One process tree on one directory, or processes that share Kafka, Postgres and Redis."""
    blobs: str | None = None
    """The place of weights, manifests and probes: a directory, or a URL (`s3://bucket/prefix`, `gs://bucket/prefix`,
    by the extras `s3` and `gcs`); None: `blobs` in the service's directory."""
    api: ApiSettings = ApiSettings()
    privacy: PrivacySettings = PrivacySettings()
    """What is done with the words of users before they are stored."""
    quotas: QuotaSettings = QuotaSettings()
    """How much may be asked for, and stored, in a minute and in a month."""
    ingest: IngestSettings = IngestSettings()
    archive: ArchiveSettings = ArchiveSettings()
    audit: AuditSettings = AuditSettings()
    """The trail of who read, ordered, changed or deleted what."""
    scoring: ScoringSettings = ScoringSettings()
    monitors: MonitorSettings = MonitorSettings()
    """The watch over signs that rewards are being gamed."""
    alerts: AlertSettings = AlertSettings()
    """Who is told of alarms."""
    judge: JudgeSettings = JudgeSettings()
    """Who else says how good answers are."""
    learner: LearnerSettings = LearnerSettings()
    serving: ServingSettings = ServingSettings()
    rollouts: RolloutSettings = RolloutSettings()
    """Agents at work on tasks, beside the users."""
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
    """Limits for retries and restarts of stages."""
    metrics: MetricsSettings = MetricsSettings()
    """The metrics page of stages that run alone."""
    tracing: TracingSettings = TracingSettings()
    """Where spans of turns and versions go."""

    @model_validator(mode="after")
    def _hosts_may_drain(self) -> Self:
        if self.stages.end_s <= self.serving.sglang.timeouts.drain_s:
            raise ValueError("stages.end_s is not more than serving.sglang.timeouts.drain_s: hosts could not drain")
        return self


def load_settings(file: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Load settings from a file and the environment. A `file` of None or a missing one counts as empty.

    Raises ConfigError naming the key, and which was probably meant."""
    values = _values_of(file)
    given = {  # a section's own name before its keys: a clash is seen
        ".".join(name.removeprefix(PREFIX).lower().split("__")): _parse(text)
        for name, text in sorted(environment.items())
        if name.startswith(PREFIX) and name not in NOT_SETTINGS
    }
    for path, value in given.items():
        place(values, path, value)
    try:
        return _kept_out(Settings.model_validate(values))
    except ValidationError as error:
        raise ConfigError("settings: " + "; ".join(map(_said, error.errors()))) from error


def _values_of(file: Path | None) -> dict[str, Any]:
    if file is None or not file.exists():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error


def _said(error: ErrorDetails) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "model_type":
        inside = [name.removeprefix(f"{path}.") for name in paths(Settings) if name.startswith(f"{path}.")]
        return f"{path}: a section, of {', '.join(dict.fromkeys(name.partition('.')[0] for name in inside))}"
    meant = probably_meant(path, paths(Settings)) if error["type"] == "extra_forbidden" else None
    return f"{path}: {error['msg']}" + ("" if meant is None else f" (is {meant} meant?)")


def _kept_out(settings: Settings) -> Settings:
    """Keep the eval suite of the releases out of training, too."""
    suite, learner = settings.release.evals.suite, settings.learner
    if suite is None or suite in learner.admission.keep_out:
        return settings
    admission = learner.admission.model_copy(update={"keep_out": (*learner.admission.keep_out, suite)})
    return settings.model_copy(update={"learner": learner.model_copy(update={"admission": admission})})


def _parse(text: str) -> Any:
    """Parse an environment value: TOML where it is valid (numbers, booleans, lists), else plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
