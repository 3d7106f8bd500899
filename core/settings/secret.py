"""The settings that are secret: they appear in no argument list, log line or report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from core.secrets import decoded_password_of, password_of

if TYPE_CHECKING:
    from core.settings import Settings

NAMES: Final = frozenset(
    {
        "alerts.targets",
        "api.keys",
        "api.user_hash_key",
        "audit.key",
        "judge.api_key",
        "kafka.security.sasl_password",
        "rollouts.requests.api_key",
        "serving.sglang.admin_key",
        "tracing.token",
    }
)
"""All of what they say is secret."""
URLS: Final = frozenset(
    {
        "postgres.url",
        "redis.url",
        "blobs",
        "archive.url",
        "judge.base_url",
        "rollouts.requests.base_url",
        "serving.sglang.urls",
        "tracing.url",
    }
)
"""Settings in which only a password, where there is one, is secret."""


def secrets_of(settings: "Settings") -> Iterator[str]:
    """Every secret there, but for the default that everybody knows."""
    default = type(settings)().api.user_hash_key
    for name in NAMES | URLS:
        for text in _texts(_value(settings, name)):
            found = (text,) if name in NAMES else (password_of(text), decoded_password_of(text))
            yield from (each for each in dict.fromkeys(found) if each is not None and each != default)


def is_secret(name: str, value: str) -> bool:
    """Return whether `name=value` contains a secret."""
    place = name.lower()
    if any(place == secret or place.startswith(f"{secret}.") for secret in NAMES):
        return True
    return place in URLS and password_of(value) is not None


def _value(settings: Any, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def _texts(value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, dict):  # targets of alerts: an address may be as good as a password
        value = tuple(text for each in value.values() for text in (each.url, each.secret, each.token) if text)
    for each in value if isinstance(value, tuple) else (value,):
        text = getattr(each, "key", each)
        if text is not None:  # a key may be known by its hash alone
            yield str(text)
