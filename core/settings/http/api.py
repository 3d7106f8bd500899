"""The HTTP API."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from core.section import Section
from core.settings.http.bodies import BodySettings
from core.settings.http.connections import ConnectionSettings
from core.temperature import LARGEST_TEMPERATURE, LEAST_TEMPERATURE, Temperature

Scope = Literal["chat", "feedback", "read", "operate", "audit", "admin"]
KEY_NAME = r"^[a-zA-Z0-9][a-zA-Z0-9_.@-]{0,63}$"
_HOST = r"^[a-z0-9_.-]{1,255}$"
_ORIGIN = r"^[a-z][a-z0-9+.-]*://[a-z0-9_.:\[\]-]{1,255}$"
WORKLOAD_NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
LEAST_RATE, LARGEST_RATE = 1e-6, 1e9  # a minute: beyond these a limit is none, or lets nobody in for years
LARGEST_BURST = 10**9
_MILLION = 1e6


class RateLimit(Section):
    """Requests to chat, completions and feedback. What exceeds it is refused with 429."""

    requests_per_minute: float | None = Field(default=None, ge=LEAST_RATE, le=LARGEST_RATE)
    """How many; None: no limit."""
    burst: int | None = Field(default=None, ge=1, le=LARGEST_BURST)
    """How many of them at once; None: a minute's."""

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if self.burst is not None and self.requests_per_minute is None:
            raise ValueError("burst: only with requests_per_minute")
        return self


class NamespaceSettings(RateLimit):
    """A tenant: all its keys together."""

    shares_prefixes: bool = False
    """Whether its users go on from what the engine computed for one another, such as a common system prompt. It is
    quicker, and lets each of them find out, guess by guess, what others asked."""


class ApiKey(RateLimit):
    key: str | None = Field(default=None, min_length=8, repr=False)
    """The bearer token; or `hash`."""
    hash: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """The BLAKE2b digest of 32 bytes of a key of at least 128 random bits, as `onward keys hash` prints it: from the
    digest of less the key can be guessed. It needs a `name`."""
    expires_at: AwareDatetime | None = None
    """When it ends; None: never."""
    namespace: str = Field(min_length=1)
    """The tenant it belongs to."""
    name: str | None = Field(default=None, pattern=KEY_NAME)
    """The name under which its orders are recorded. Keys of one name own together what they make, so that one can
    replace another. None: a fingerprint of the key."""
    user: str | None = Field(default=None, min_length=1)
    """The only user it speaks for, whether a request names a user or not; another is refused. None: the user that each
    request names."""
    scopes: tuple[Scope, ...] = ("chat", "feedback")
    """The rights of the key, which docs/security.md lists route by route; `admin` stands for all of them."""

    @model_validator(mode="after")
    def _is_one_key(self) -> Self:
        if (self.key is None) == (self.hash is None):
            raise ValueError("key: key or hash, one of them")
        if self.hash is not None and self.name is None:
            raise ValueError("name: a key that is known by its hash needs one")
        return self


class WorkloadSettings(Section):
    """The sampling of a workload, whatever its requests ask for; None: as they ask."""

    temperature: Temperature | None = None
    """0, or 0.01 to 2. 0: the likeliest tokens, which cannot be trained on."""
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
    zero_share: float | None = Field(default=None, gt=0, le=1)
    """The share of sessions whose requests at temperature 0 are sampled at `zero_temperature`; None: none."""
    zero_temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE, le=LARGEST_TEMPERATURE)
    """The temperature of those."""

    @model_validator(mode="after")
    def _has_one_temperature(self) -> Self:
        if self.temperature is not None and self.zero_share is not None:
            raise ValueError("zero_share: only without temperature, which is that of all requests")
        return self


class TlsSettings(Section):
    certificate: Path | None = None
    """PEM file of the certificate, with those between it and the root; with it and `key`, the API speaks TLS."""
    key: Path | None = None
    """PEM file of its private key, not encrypted."""

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise ValueError(f"{missing}: certificate and key, both or neither")
        return self


class WebSettings(Section):
    allowed_hosts: tuple[Annotated[str, Field(pattern=_HOST)], ...] = ()
    """Names by which the API may be asked, beside `localhost` and addresses; without ports. Beyond loopback, where
    empty: any."""
    allowed_origins: tuple[Annotated[str, Field(pattern=_ORIGIN)], ...] = ()
    """Web pages of other origins that may use the API from a browser, as in `https://app.example.org`."""


class FeedbackSettings(Section):
    user_per_minute: float | None = Field(default=None, ge=LEAST_RATE, le=LARGEST_RATE)
    """Most feedback of one user, refilled evenly, beside the limits of its key; what exceeds it is refused with 429.
    None: no limit."""
    lookup_s: float = Field(default=2.0, ge=0)
    """How long feedback waits for the writer to store an inference that is not known yet."""
    clock_skew_s: float = Field(default=300.0, ge=0)
    """How far in the future, by our clock, feedback's `observed_at` may lie."""
    batch_items: int = Field(default=256, ge=1)
    """Most reports in one `POST /v1/feedback/batch`, and most events in one export that become outcomes."""
    events: Path | None = None
    """Table of the events of editors and agents (OpenTelemetry) that say what users did; None: the shipped one,
    `api/feedback/reports/otlp/events.toml`."""
    join_window_s: float = Field(default=600.0, gt=0)
    """How old a turn may be to which an event is joined that names no id of it."""
    join_turns: int = Field(default=1000, ge=1)
    """Most turns that are looked at to join one such event; where there are more, it stays unjoined."""


class PriceSettings(Section):
    """What a million tokens cost, in any currency; where all are free, the console shows no cost."""

    prompt: float = Field(default=0.0, ge=0)
    """Tokens of a prompt that the turn before did not have."""
    output: float = Field(default=0.0, ge=0)
    """Tokens that were sampled."""

    @property
    def are_known(self) -> bool:
        return bool(self.prompt or self.output)

    def cost(self, prompt: int, output: int) -> float | None:
        """Return what so many tokens cost; None where tokens have no price."""
        return (prompt * self.prompt + output * self.output) / _MILLION if self.are_known else None


class AdvancedApiSettings(Section):
    default_namespace: str = "default"
    """Namespace of keyless requests."""
    default_max_tokens: int = Field(default=512, gt=0)
    """Output tokens where the request names none; the context may allow fewer."""
    environment: Literal["production", "simulated"] = "production"
    """Stamped on every turn."""
    order_wait_s: float = Field(default=60.0, ge=0)
    """How long an order to the release controller is waited for before it is answered as accepted."""


class LowPrioritySettings(Section):
    """Requests of low priority (`x-onward-priority: low`), which never take the last places."""

    at_once: int = Field(default=64, ge=0)
    """Most of them under way, of one key three quarters; what exceeds it is refused with 503, and told when to try
    again. 0: all are refused."""
    retry_after_s: int = Field(default=1, ge=1)
    """When to try again, at the soonest; later where answers take so long that no place is free by then."""


class ApiSettings(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs keys."""
    port: int = Field(default=8700, ge=0, le=65535)
    """Port; 0 asks the system for a free one."""
    keys: tuple[ApiKey, ...] = ()
    """API keys; without any, requests from loopback act as `advanced.default_namespace` with all scopes."""
    namespaces: dict[Annotated[str, Field(min_length=1)], NamespaceSettings] = Field(default={})
    """Limits for all keys of a namespace together, and what they share, by its name."""
    user_hash_key: str = Field(default="onward-development", repr=False)
    """Key of the hash under which user names are stored. Must be changed to listen beyond loopback."""
    workloads: dict[Annotated[str, Field(pattern=WORKLOAD_NAME)], WorkloadSettings] = Field(default={})
    """Sampling that overrides the requests of a workload, by the workload's name."""
    tls: TlsSettings = TlsSettings()
    """TLS of its own."""
    web: WebSettings = WebSettings()
    """Access for web pages in browsers."""
    feedback: FeedbackSettings = FeedbackSettings()
    """How feedback is accepted."""
    bodies: BodySettings = BodySettings()
    """How large they may be, and what reading large ones may cost."""
    connections: ConnectionSettings = ConnectionSettings()
    """How many there may be, and how long each may take over what."""
    prices: PriceSettings = PriceSettings()
    """What tokens cost."""
    low_priority: LowPrioritySettings = LowPrioritySettings()
    """Requests that nobody waits for: how many there may be."""
    advanced: AdvancedApiSettings = AdvancedApiSettings()
    """Settings that are rarely changed."""
