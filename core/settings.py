"""Settings: one frozen model per stage, from `onward.toml` and the environment, read once.

A value comes from the environment (`ONWARD_API__PORT=9000`), else from the file, else from the default here.
Unknown keys are refused in both. Every field is documented in docs/settings.md, which a test holds against this file.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import ConfigError

PREFIX = "ONWARD_"
NOT_SETTINGS = frozenset({"ONWARD_REQUIRE_SERVICES"})  # the tests' own switch
Scope = Literal["chat", "feedback", "admin"]
WORKLOAD_NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"


class _Stage(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiKey(_Stage):
    key: str = Field(min_length=8)
    """The bearer token."""
    namespace: str = Field(min_length=1)
    """The tenant it belongs to."""
    scopes: tuple[Scope, ...] = ("chat", "feedback")
    """What it may do."""


class WorkloadSettings(_Stage):
    """How a workload is sampled, whatever its requests ask for; None: as they ask."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """0: the likeliest tokens, which cannot be trained on."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """1: all tokens."""
    top_k: int | None = Field(default=None, ge=0, le=1 << 31)
    """0: all tokens."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """0: all tokens."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most output tokens; who asks for fewer gets fewer."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """0: none."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """0: none."""
    logit_bias: Literal[False] | None = None
    """False: none."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(default=None, max_length=4)
    """Instead of the request's stop strings; an empty list: none."""


class ApiSettings(_Stage):
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs keys."""
    port: int = Field(default=8700, ge=0, le=65535)
    """Port; 0 asks the system for a free one."""
    keys: tuple[ApiKey, ...] = ()
    """API keys; without any, requests from loopback act as `default_namespace` with all scopes."""
    default_namespace: str = "default"
    """Namespace of keyless requests."""
    user_hash_key: str = "onward-development"
    """Key of the hash under which user names are stored. Must be changed to listen beyond loopback."""
    max_body_bytes: int = Field(default=4 << 20, gt=0)
    """Larger request bodies are refused with 413."""
    feedback_lookup_s: float = Field(default=2.0, ge=0)
    """How long feedback looks for an inference that is not known yet."""
    order_wait_s: float = Field(default=60.0, ge=0)
    """How long an order to the release controller is waited for before it is answered as accepted."""
    default_max_tokens: int = Field(default=512, gt=0)
    """Output tokens where the request names none; the context may allow fewer."""
    environment: Literal["production", "simulated"] = "production"
    """Stamped on every turn."""
    workloads: dict[Annotated[str, Field(pattern=WORKLOAD_NAME)], WorkloadSettings] = {}
    """Sampling that wins over what requests of a workload ask for, by the workload's name."""


class IngestSettings(_Stage):
    partitions: int = Field(default=4, ge=1, le=1024)
    """Partitions of each topic; fixed when a log is made."""
    batch_records: int = Field(default=512, ge=1)
    """Most records that the writer puts into the store in one transaction."""
    poll_s: float = Field(default=0.02, gt=0)
    """How often a reader looks for new records when told of none."""
    spool_bytes: int = Field(default=256 << 20, ge=0)
    """Bound of the disk spool that takes turns while the log is down."""


class ScoringSettings(_Stage):
    spec: Path | None = None
    """Reward spec; None: `rewards.toml` in the directory, else the shipped one."""
    tick_s: float = Field(default=0.1, gt=0)
    """How often waits are checked."""
    batch_records: int = Field(default=512, ge=1)
    """Most records taken into the ledger in one transaction."""


class LearnerSettings(_Stage):
    enabled: bool = True
    """False: serve and log only."""
    seed: int = 0
    """Seed of everything random in the learner."""
    device: str = "cpu"
    """Torch device."""
    batch_turns: int = Field(default=64, ge=2)
    """Scored turns in an update."""
    max_wait_s: float = Field(default=2.0, gt=0)
    """A smaller batch of at least `min_turns` trains when its oldest turn has waited so long."""
    min_turns: int = Field(default=16, ge=2)
    """Fewest turns in an update."""
    backlog_turns: int = Field(default=192, ge=2)
    """Most turns that wait for an update; beyond it the oldest are let go, and counted. It bounds how long feedback
    waits when it comes faster than it can be learned from."""
    micro_batch_tokens: int = Field(default=1024, ge=64)
    """Padded tokens in one forward pass; on a CPU, what fits its caches is fastest."""
    learning_rate: float = Field(default=4e-4, gt=0)
    """AdamW's."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    advantage: Literal["value", "ema"] = "value"
    """Baseline: a value head on the hidden states, or a moving average per stratum (namespace, workload, channel)."""
    ema_decay: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the moving average."""
    value_learning_rate: float = Field(default=2e-3, gt=0)
    """AdamW's, for the value head."""
    ratio_cap: float = Field(default=2.0, ge=1)
    """Truncated importance sampling: the ratio's upper bound."""
    kl_coefficient: float = Field(default=0.2, ge=0)
    """Weight of the k3 estimate of the KL divergence to the anchor, in the loss."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    max_divergence: float = Field(default=0.5, gt=0)
    """A turn whose mean k3 between behaviour and current policy is larger does not train."""
    min_ess: float = Field(default=0.3, ge=0, le=1)
    """Smallest effective sample size of a batch's turns, as a share; the most divergent are left out until it holds."""
    max_outcome_age_s: dict[str, float] = {}
    """Age, by name of outcome, past which a reward goes to the baselines only."""
    default_max_age_s: float = Field(default=86400.0, gt=0)
    """The same for outcomes not named above."""
    max_lead: int = Field(default=2, ge=1)
    """Most versions ahead of the live one; then turns accumulate."""
    keep_checkpoints: int = Field(default=8, ge=2)
    """Checkpoints kept besides the live version's."""


class SglangSettings(_Stage):
    python: Path = Path(".sglang/bin/python")
    """Interpreter of the environment that SGLang is installed in; `make sglang-cpu` makes the one for CPUs."""
    replicas: int = Field(default=1, ge=0, le=64)
    """Servers that `onward run` starts, each beside its host; 0: hosts are started with `onward serve`."""
    urls: tuple[str, ...] = ()
    """Servers that run already: `onward run` starts a host beside each of these instead."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What the servers compute on."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What they compute in: what log-probabilities may differ by depends on it."""
    arguments: tuple[str, ...] = ()
    """More arguments for the servers, as SGLang's own command line takes them."""
    admin_key: str | None = None
    """Their --admin-api-key."""
    admin_timeout_s: float = Field(default=30.0, gt=0)
    """How long a step of a swap may take before the server counts as hung; large weights take longer to load."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """How long a server may take to start."""
    drain_s: float = Field(default=20.0, ge=0)
    """How long a host that is stopped waits for requests under way."""
    silence_s: float = Field(default=60.0, gt=0)
    """How long a request may hear nothing from its server before it counts as lost."""
    health_every_s: float = Field(default=5.0, gt=0)
    """How often a server must show that it still generates."""
    health_timeout_s: float = Field(default=10.0, gt=0)
    """How long it has for that."""


class ServingSettings(_Stage):
    engine: Literal["local", "sglang"] = "local"
    """What generates: torch within the service's process, or SGLang servers."""
    model: Path | None = None
    """Directory of a Hugging Face causal LM; None: the shipped tiny model."""
    model_name: str = "onward-tiny"
    """The name clients use."""
    device: str = "cpu"
    """Torch device of the local engine."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the local engine computes in."""
    slots: int = Field(default=48, ge=1)
    """Requests decoded together; each slot keeps its prefix for reuse afterwards."""
    context_length: int | None = Field(default=None, ge=16)
    """Most tokens of prompt and answer; None: the model's."""
    prefill_tokens: int = Field(default=4096, ge=16)
    """Most prompt tokens computed between two decode steps."""
    min_swap_interval_s: float = Field(default=0.5, ge=0)
    """Least time between two swaps."""
    gate_max_kl: float = Field(default=1.0, gt=0)
    """Sanity gate: largest mean KL divergence per token to the live version, on the probe set."""
    gate_min_entropy: float = Field(default=1e-4, ge=0)
    """Sanity gate: smallest mean entropy per token (nats)."""
    gate_max_entropy_share: float = Field(default=0.8, gt=0, le=1)
    """Sanity gate: largest mean entropy as a share of log(vocabulary)."""
    keep_versions: int = Field(default=8, ge=2)
    """Published weights kept besides the live ones and their ancestors in memory."""
    anchor_every: int = Field(default=25, ge=1)
    """Of so many versions in a row one is published whole, the others as deltas where these are worth it; 1: all are
    whole."""
    cached_versions: int = Field(default=4, ge=2)
    """Versions rebuilt from deltas, or fetched, that a host keeps on its disk: the last used."""
    engine_wait_s: float = Field(default=10.0, ge=0)
    """How long a request waits for an engine while none serves, or the one that had it is lost before a token."""
    heartbeat_timeout_s: float = Field(default=5.0, gt=0)
    """A replica that has said nothing for so long is gone: it gets no requests, and nobody waits for it."""
    sglang: SglangSettings = SglangSettings()
    """The SGLang servers."""


class ReleaseSettings(_Stage):
    controller: bool = True
    """Whether `onward run` decides on releases; False: an `onward release` process does."""
    lease_s: float = Field(default=5.0, gt=0)
    """How long a controller that fell silent keeps its right to decide."""
    order_timeout_s: float = Field(default=60.0, gt=0)
    """How long an operator's order may wait for an engine."""
    canary: Literal["auto", "on", "off"] = "auto"
    """Whether a version is tried on a share of users first; auto: with a fleet of several engines. One engine of one
    version cannot; then versions are released directly, under guards."""
    canary_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of users that a canary serves."""
    holdback_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of users that stay on the first version, against which slow drift is measured."""
    holdback_salt: str = "holdback"
    """Which users these are; changing it chooses others."""
    maturity_s: float = Field(default=30.0, ge=0)
    """Age at which a turn's reward counts in the test of a canary, in every arm alike."""
    margin: float = Field(default=0.02, ge=0)
    """Reward by which a canary may be worse and still be promoted before the horizon."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Share of canaries as good as the live version that the test may roll back wrongly."""
    min_users: int = Field(default=20, ge=2)
    """Fewest users in each arm before the test decides."""
    horizon_turns: int = Field(default=2000, ge=1)
    """Matured canary turns after which a canary is decided on whatever the test knows."""
    horizon_s: float = Field(default=86400.0, gt=0)
    """The same in time."""
    guard_turns: int = Field(default=2000, ge=20)
    """Most turns of each side that the guards look back on."""


class Settings(_Stage):
    mode: Literal["embedded"] = "embedded"
    """Which adapters: one process tree and one directory."""
    blobs: str | None = None
    """Where weights, manifests and probes are kept: a directory, or a URL (`s3://bucket/prefix`, `gs://bucket/prefix`,
    by the extras `s3` and `gcs`); None: `blobs` in the service's directory."""
    api: ApiSettings = ApiSettings()
    ingest: IngestSettings = IngestSettings()
    scoring: ScoringSettings = ScoringSettings()
    learner: LearnerSettings = LearnerSettings()
    serving: ServingSettings = ServingSettings()
    release: ReleaseSettings = ReleaseSettings()


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
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError("settings: " + "; ".join(lines)) from error


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
