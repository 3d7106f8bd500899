"""What accounts use of their quotas: namespaces, their keys and their users, by the month."""

from datetime import UTC, datetime
from typing import Literal, NamedTuple

from core.settings import Quota, QuotaSettings

AccountKind = Literal["namespace", "key", "user"]


class Account(NamedTuple):
    kind: AccountKind
    namespace: str
    name: str  # the namespace, a key's name, or a user's keyed hash

    @property
    def path(self) -> str:
        """Return its name among all accounts; a namespace may have any characters."""
        return f"{self.kind}:{len(self.namespace)}:{self.namespace}:{self.name}"


class Use(NamedTuple):
    requests: int = 0
    tokens: int = 0
    stored_bytes: int = 0

    def plus(self, other: "Use") -> "Use":
        return Use(*(mine + more for mine, more in zip(self, other, strict=True)))


def quota_of(settings: QuotaSettings, account: Account) -> Quota | None:
    quotas, name = {
        "namespace": (settings.namespaces, account.name),
        "key": (settings.keys, account.name),
        "user": (settings.users, account.namespace),
    }[account.kind]
    return quotas.get(name)


def month_of(now: datetime) -> str:
    """Return the month of UTC, as in `2026-11`."""
    return now.astimezone(UTC).strftime("%Y-%m")


def seconds_left_in_month(now: datetime) -> float:
    now = now.astimezone(UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return (datetime(year, month, 1, tzinfo=UTC) - now).total_seconds()


def seconds_left_in_minute(now: datetime) -> float:
    return 60 - now.second - now.microsecond / 1e6
