"""Every error that Onward raises on purpose.

OnwardError
├── ConfigError              a setting, file or option is wrong; names it
├── RequestError             the client's fault; becomes a 4xx in OpenAI's error shape and names the field
│   ├── InvalidRequest       400
│   ├── Unauthorized         401
│   ├── Forbidden            403
│   ├── NotFound             404 (also: another namespace's)
│   ├── Conflict             409
│   ├── TooLarge             413
│   ├── UnsupportedMediaType 415
│   └── RateLimited          429
├── Unavailable              a dependency is away; 503, retry later
│   ├── LogUnavailable       the event log takes no appends
│   ├── StoreUnavailable     the store does not answer
│   ├── Overloaded           as much is under way as may be
│   └── EngineUnavailable    no engine can generate
│       └── NotFinite        a version computed no finite numbers for one request
├── SchemaMismatch           the store's tables are not those that this build knows
├── LogError
│   ├── GroupBusy            a second member of an embedded consumer group
│   ├── NewerSchema          a record written by a newer build
│   ├── Undecodable          bytes that are no event of ours
│   └── Fenced               a member that lost its partitions tried to commit
├── WeightsError             weights missing, corrupt, or not the ones named; names the file
├── CheckpointError          a checkpoint cannot be read; names the file
└── GateRefused              a version did not pass a gate; carries the figures
"""

from collections.abc import Iterator
from contextlib import contextmanager

from core.ids import PolicyRef


class OnwardError(Exception):
    """Root of the tree."""


class ConfigError(OnwardError):
    """A setting, file or option is wrong; the message names it."""


@contextmanager
def from_extra(extra: str, needed_by: str) -> Iterator[None]:
    """Import here what an extra of this package brings; `needed_by` is the setting or option that asks for it.

    Raises ConfigError that names both where the extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{needed_by}: {error.name} is not installed; {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    return f"`uv pip install -e '.[{extra}]'` in the checkout"


class RequestError(OnwardError):
    """The client's fault. `param` is the field at fault, `code` a stable word, which docs/refusals.md explains."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequest(RequestError):
    """The request is not well formed: one of its fields, where no other code says what."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_field") -> None:
        super().__init__(message, param=param, code=code)


class Unauthorized(RequestError):
    status = 401
    kind = "authentication_error"


class Forbidden(RequestError):
    status = 403
    kind = "permission_error"


class NotFound(RequestError):
    status = 404
    kind = "not_found_error"


class Conflict(RequestError):
    """What is there stands against it, where no other code says what."""

    status = 409
    kind = "conflict_error"

    def __init__(self, message: str, *, param: str | None = None, code: str = "conflict") -> None:
        super().__init__(message, param=param, code=code)


class TooLarge(RequestError):
    status = 413


class UnsupportedMediaType(RequestError):
    """The body is of a kind, or compressed in a way, that is not taken; `encodings` are those that are."""

    status = 415

    def __init__(self, message: str, *, param: str | None, code: str, encodings: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.headers = {} if encodings is None else {"accept-encoding": encodings}


class RateLimited(RequestError):
    status = 429
    kind = "rate_limit_error"


class Unavailable(OnwardError):
    """A dependency is away; the caller may retry."""


class LogUnavailable(Unavailable):
    """The event log takes no appends."""


class StoreUnavailable(Unavailable):
    """The store does not answer."""


class BlobsUnavailable(Unavailable):
    """The blobs cannot be reached."""


class Overloaded(Unavailable):
    """The limit of work in progress is reached; the error says when to try again."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.headers = {"retry-after": str(retry_after_s)}


class Unfinished(Unavailable):
    """The answer is still being made; the error says when to ask again."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"retry-after": "1"}


class EngineUnavailable(Unavailable):
    """An engine that can generate is missing."""


class NotFinite(EngineUnavailable):
    """A version computed no finite numbers for one request: the others it has are none the worse for it."""

    def __init__(self, version: PolicyRef, where: str = "the engine") -> None:
        super().__init__(f"{where}: version {version} computes no finite numbers for this request")
        self.version = version


class SchemaMismatch(OnwardError):
    """The store's tables are not those that this build knows: it was changed beneath us."""


class LogError(OnwardError):
    """The event log cannot be used as asked."""


class GroupBusy(LogError):
    """A second member asked for an embedded consumer group."""


class NewerSchema(LogError):
    """A record was written by a newer build; upgrade before reading on."""


class Undecodable(LogError):
    """Bytes that are no event of ours."""


class Fenced(LogError):
    """A member that lost its partitions tried to commit."""


class WeightsError(OnwardError):
    """Weights are missing, corrupt or not the ones named; the message names the file."""


class CheckpointError(OnwardError):
    """A checkpoint cannot be read; the message names the file."""


class GateRefused(OnwardError):
    """A version did not pass a gate."""

    def __init__(self, why: str, figures: dict[str, float]) -> None:
        super().__init__(why)
        self.why = why
        self.figures = figures
