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
    """What somebody used. The last two are what prices are of; None: a build that did not count them had a part."""

    requests: int = 0
    tokens: int = 0
    stored_bytes: int = 0
    new_prompt_tokens: int | None = 0  # which the turn before did not have
    output_tokens: int | None = 0

    def plus(self, other: "Use") -> "Use":
        return Use(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.stored_bytes + other.stored_bytes,
            _sum(self.new_prompt_tokens, other.new_prompt_tokens),
            _sum(self.output_tokens, other.output_tokens),
        )


def _sum(mine: int | None, more: int | None) -> int | None:
    return None if mine is None or more is None else mine + more


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
