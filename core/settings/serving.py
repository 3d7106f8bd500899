"""Engines and what they serve."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator

from core.section import Section
from core.settings.services.address import Address


class LocalEngineSettings(Section):
    device: str = "cpu"
    """Torch device."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The number format that it computes in."""
    slots: int = Field(default=48, ge=1)
    """Requests decoded together; each slot keeps its prefix for reuse afterwards."""
    prefill_tokens: int = Field(default=4096, ge=16)
    """Most prompt tokens computed between two decode steps."""


class SglangTimeoutSettings(Section):
    admin_s: float = Field(default=30.0, gt=0)
    """How long a step of a swap may take before the server counts as hung. To load weights and to compute their
    checksums it has a second for each 100 MB of them, where that is longer."""
    start_s: float = Field(default=300.0, gt=0)
    """How long a server may take to start."""
    drain_s: float = Field(default=20.0, ge=0)
    """How long a host that is stopped waits for requests under way."""
    silence_s: float = Field(default=60.0, gt=0)
    """How long a request may get nothing from its server before it counts as lost. One of low priority, which others
    pass, may for as long as its server is well."""
    health_every_s: float = Field(default=5.0, gt=0)
    """How often a server must show that it still generates."""
    health_s: float = Field(default=10.0, gt=0)
    """How long it has for that."""


class SglangSettings(Section):
    python: Path = Path(".sglang/bin/python")
    """Interpreter of the environment that SGLang is installed in; `make sglang-cpu` makes the one for CPUs."""
    replicas: int = Field(default=1, ge=0, le=64)
    """Servers that `onward run` starts, each beside its host; 0: hosts are started with `onward serve`."""
    urls: tuple[Address, ...] = ()
    """Servers that run already: `onward run` starts a host beside each of these instead."""
    llguidance: str = ""
    """The version of llguidance beside servers that run already, which they do not tell; "": unknown."""
    device: Literal["cpu", "cuda"] = "cpu"
    """The kind of hardware that the servers compute on."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The number format that they compute in; log-probabilities may differ the more, the coarser it is."""
    arguments: tuple[str, ...] = ()
    """More arguments for the servers, as SGLang's own command line takes them."""
    admin_key: str | None = Field(default=None, repr=False)
    """Their --admin-api-key."""
    timeouts: SglangTimeoutSettings = SglangTimeoutSettings()
    """Time limits."""

    @field_validator("arguments")
    @classmethod
    def _runs_no_code_of_the_models(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if any(each.partition("=")[0] == "--trust-remote-code" for each in given):
            raise ValueError("--trust-remote-code: code that comes with a model is never run")
        return given


MOST_CERTIFIED: Final = 100
"""Versions that canaries ended well for, the newest, that are kept within `most_gb`."""


class VersionSettings(Section):
    min_swap_interval_s: float = Field(default=0.5, ge=0)
    """Least time between two swaps."""
    keep: int = Field(default=30, ge=2)
    """The newest versions, whose weights are kept however old they are, besides the first, the live and the previous
    one, those that canaries are held against and, within `most_gb`, the newest hundred that canaries ended well for.
    Any other version can be made again, which takes the seconds that `GET /v1/policies` says."""
    all_s: float = Field(default=600.0, ge=0)
    """The weights of versions that are no older than this are all kept."""
    by_minute_s: float = Field(default=7200.0, ge=0)
    """Of versions no older than this, the weights of one a minute are kept."""
    by_hour_s: float = Field(default=2 * 86400.0, ge=0)
    """Of versions no older than this, the weights of one an hour are kept."""
    by_day_s: float = Field(default=60 * 86400.0, ge=0)
    """Of versions no older than this, the weights of one a day are kept; of older ones, none for their age."""
    most_gb: float | None = Field(default=20.0, gt=0)
    """Most that published weights may take of the blobs: beyond it the oldest of those that are kept for their age go,
    and then of those that canaries ended well for. None: their ages alone say."""
    anchor_every: int = Field(default=25, ge=1)
    """One of this many versions in a row is published whole, the others as deltas where these are worth it; 1: all are
    whole."""
    cached: int = Field(default=4, ge=2)
    """Versions rebuilt from deltas, or fetched, that a host keeps on its disk: the last used."""


class SharingSettings(Section):
    """How hosts give each other the weights that they fetched from remote blobs (`blobs`)."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """The port on which a host gives other hosts files of versions, by their checksums, so that one of them alone reads
    the blobs. Processes that `onward run` starts get ports from this one on. 0 asks the system for a free one; None:
    each host fetches all by itself."""
    host: str = "0.0.0.0"
    """The address that it listens on."""
    name: str | None = None
    """The name or address by which other hosts reach it; None: its host name."""


class FleetSettings(Section):
    engine_wait_s: float = Field(default=10.0, ge=0)
    """How long a request waits for an engine while none serves, or the one that had it is lost before a token."""
    heartbeat_timeout_s: float = Field(default=5.0, gt=0)
    """A replica without a heartbeat for this long is gone: it gets no requests, and nothing waits for it."""
    low_priority: int = Field(default=16, ge=1)
    """Most requests of low priority that one process has under way on one engine; others of them wait. The engine
    pauses them for whoever else comes, but until then they compute in the same steps."""


class ServingSettings(Section):
    engine: Literal["local", "sglang"] = "local"
    """The engine: torch within the service's process, or SGLang servers."""
    model: Path | None = None
    """Directory of a Hugging Face causal LM; None: the shipped tiny model."""
    model_name: str = "onward-tiny"
    """The name clients use."""
    family: Literal[
        "auto", "gpt_oss", "gemma", "glm", "qwen_coder", "deepseek", "mistral", "qwen", "llama", "plain"
    ] = "auto"
    """How the model writes thinking and calls of tools; auto: as its chat template shows."""
    context_length: int | None = Field(default=None, ge=16)
    """Most tokens of prompt and answer; None: the model's."""
    local: LocalEngineSettings = LocalEngineSettings()
    """The local engine."""
    sglang: SglangSettings = SglangSettings()
    """The SGLang servers."""
    versions: VersionSettings = VersionSettings()
    """Published weights."""
    sharing: SharingSettings = SharingSettings()
    """Weights given from host to host."""
    fleet: FleetSettings = FleetSettings()
    """How long engines are waited for."""
    cluster: str = Field(default="local", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    """Name of this service's engines in the store: live version, canaries, orders and engines stand under it."""
