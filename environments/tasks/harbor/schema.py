"""The settings of a task in Harbor's format, `task.toml`, up to its schema 1.4. What no field here names is refused.

The names, units and defaults are Harbor's (https://www.harborframework.com/docs/tasks); which of them are honoured is
decided in `refusals.py`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from environments.tasks.harbor.values import megabytes

NetworkMode = Literal["no-network", "public", "allowlist"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]
User = str | int


class TaskTable(BaseModel):
    """A table of `task.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AuthorSettings(TaskTable):
    """One of `[[task.authors]]`."""

    name: str
    email: str | None = None


class PackageSettings(TaskTable):
    """`[task]`: what the task is called in a registry."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    version: Annotated[str, Field(min_length=1)] | None = None
    description: str = ""
    authors: list[AuthorSettings] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class PhaseSettings(TaskTable):
    """What the agent's and the verifier's part have in common."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    user: User | None = None


class AgentSettings(PhaseSettings):
    """`[agent]`."""

    timeout_sec: Seconds | None = None


class HealthcheckSettings(TaskTable):
    """`[environment.healthcheck]`, whose numbers mean what Docker's do."""

    command: str
    interval_sec: Wait = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Wait = 0.0
    start_interval_sec: Wait = 5.0
    retries: Annotated[int, Field(ge=1)] = 3


class EnvironmentSettings(TaskTable):
    """`[environment]` and `[verifier.environment]`."""

    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    allow_internet: bool | None = None
    build_timeout_sec: Seconds = 600.0
    docker_image: Annotated[str, Field(pattern=r"^[A-Za-z0-9]")] | None = None  # else an engine took it for an option
    os: Literal["linux", "windows"] = "linux"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    storage_mb: Annotated[int, Field(gt=0)] | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: HealthcheckSettings | None = None
    workdir: Annotated[str, Field(pattern=r"^/")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_older_names(cls, given: Any) -> Any:
        """Read `memory` and `storage` of schemas before 1.1 as `memory_mb` and `storage_mb`."""
        if not isinstance(given, dict):
            return given
        known = dict(given)
        for old in ("memory", "storage"):
            if old not in known:
                continue
            size, new = known.pop(old), f"{old}_mb"
            if not isinstance(size, str):
                raise ValueError(f"{old} is written like 2G")
            if known.setdefault(new, megabytes(size)) != megabytes(size):
                raise ValueError(f"{old} and {new} say different things")
        if isinstance(known.get("os"), str):
            known["os"] = known["os"].lower()
        return known

    @property
    def networked(self) -> bool:
        """Whether a network is asked for in so many words: Harbor gives one by default, we do not."""
        if self.network_mode is not None:
            return self.network_mode == "public"
        return bool(self.allow_internet)


class CollectSettings(TaskTable):
    """One of `[[verifier.collect]]`."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierSettings(PhaseSettings):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentSettings | None = None
    collect: list[CollectSettings] = Field(default_factory=list)

    @property
    def separate(self) -> bool:
        """Whether the tests run in a sandbox of their own, to which only the artifacts are carried."""
        return self.environment_mode == "separate" or self.environment is not None


class SolutionSettings(TaskTable):
    """`[solution]`."""

    env: dict[str, str] = Field(default_factory=dict)


class ArtifactSettings(TaskTable):
    """One entry of `artifacts` that is a table."""

    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None


class TaskSettings(TaskTable):
    """The whole of `task.toml`."""

    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    task: PackageSettings | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: VerifierSettings = Field(default_factory=VerifierSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    environment: EnvironmentSettings = Field(default_factory=EnvironmentSettings)
    solution: SolutionSettings = Field(default_factory=SolutionSettings)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    multi_step_reward_mode: str | None = None  # its name before schema 1.3
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | ArtifactSettings] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _read_older_name(cls, given: Any) -> Any:
        """Read `version` of the first schemas as `schema_version`."""
        if not isinstance(given, dict) or "version" not in given:
            return given
        known = dict(given)
        version = known.pop("version")
        if known.setdefault("schema_version", version) != version:
            raise ValueError("version and schema_version say different things")
        return known
