"""Quotas of tokens and requests, by namespace, key and user, in a minute and in a month.

A minute is counted in the live state, which all API replicas share. A month is counted in the store: each replica adds
what it served about once a second, and hears then what others did; so a restart forgets nothing, and two replicas let
pass at most what they serve in a second more than one would.

A request is let in while some tokens are left, since nobody knows how long its answer will be; what it used is counted
when it ends. So the last one may pass the limit, and the next is refused."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from api.access.identity import Identity
from api.access.quotas.limits import TooManyRequests
from api.access.quotas.months import Months
from api.http.asgi import RawHeaders
from core.events import Priority
from core.ids import Namespace, UserHash
from core.operations.quotas import Account, Use, seconds_left_in_minute, seconds_left_in_month
from core.ports import Clock, LiveState, Window
from core.settings import Quota, QuotaSettings
from core.telemetry import QUOTA_REFUSED

Of = Literal["requests", "tokens"]
Per = Literal["minute", "month"]
_WINDOW_LIFE_S: Final = 120.0
_OF: Final[tuple[Of, ...]] = ("requests", "tokens")
_WHOSE = {"namespace": "this namespace", "key": "this API key", "user": "this user"}


class QuotaExceeded(TooManyRequests):
    """A refusal for a budget that is used up until the month ends, as OpenAI says it."""

    kind = "insufficient_quota"


class Limit(NamedTuple):
    """One limit of one account, and what was used of it before the request."""

    account: Account
    of: Of
    per: Per
    limit: int
    used: int
    resets_in_s: float

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    @property
    def left_share(self) -> float:
        return self.left / self.limit


@dataclass(frozen=True)
class Admitted:
    """The accounts that a request's tokens will be counted on, and how their limits stand."""

    accounts: tuple[Account, ...] = ()
    headers: RawHeaders = field(default_factory=list)


NOTHING: Final = Admitted()


class Quotas:
    """The quotas of one process, on one event loop."""

    def __init__(self, settings: QuotaSettings, live_state: LiveState, months: Months, clock: Clock) -> None:
        self._settings, self._live_state, self._months, self._clock = settings, live_state, months, clock

    async def admit(self, identity: Identity, priority: Priority | None = None) -> Admitted:
        """Count a request of a key. Raises TooManyRequests where its namespace or its keys have nothing left."""
        return await self._admit(dict(self._of_key(identity)), priority)

    async def admit_user(self, namespace: Namespace, user: UserHash | None, priority: Priority | None) -> Admitted:
        """Count a request of a user. Raises TooManyRequests where he has nothing left."""
        quota = self._settings.users.get(namespace)
        if quota is None or user is None:
            return NOTHING
        return await self._admit({Account("user", namespace, user): quota}, priority)

    async def charge(self, accounts: Sequence[Account], tokens: int) -> None:
        """Count what a request used."""
        if not accounts or not tokens:
            return
        self._months.add(dict.fromkeys(accounts, Use(tokens=tokens)))
        windows = [Window(name=self._name(account, "tokens"), add=tokens) for account in accounts]
        await self._live_state.spend(windows, _WINDOW_LIFE_S)

    def _of_key(self, identity: Identity) -> Iterator[tuple[Account, Quota]]:
        of_namespace = self._settings.namespaces.get(identity.namespace)
        if of_namespace is not None:
            yield Account("namespace", identity.namespace, identity.namespace), of_namespace
        of_key = self._settings.keys.get(identity.by)
        if of_key is not None:
            yield Account("key", identity.namespace, identity.by), of_key

    async def _admit(self, quotas: Mapping[Account, Quota], priority: Priority | None) -> Admitted:
        if not quotas:
            return NOTHING
        now = self._clock.now()
        monthly = [*_limits(quotas, "month", await self._months.of(quotas), seconds_left_in_month(now))]
        for each in monthly:
            if each.left == 0:
                raise _refusal(each)
        share = 2 if priority == "low" else 1  # it leaves half of a minute's to all others
        by_minute = await self._spend_minute(quotas, share, seconds_left_in_minute(now))
        self._months.add(dict.fromkeys(quotas, Use(requests=1)))
        return Admitted(tuple(quotas), _headers([*by_minute, *monthly]))

    async def _spend_minute(self, quotas: Mapping[Account, Quota], share: int, resets_in_s: float) -> list[Limit]:
        """Count a request in this minute, of whose limits it may use this share, and return how they stood."""
        bounded = [(account, of, limit // share or 1) for account, of, limit in _wanted(quotas, "minute")]
        if not bounded:
            return []
        windows = [
            Window(name=self._name(account, of), add=int(of == "requests"), limit=limit)
            for account, of, limit in bounded
        ]
        had = await self._live_state.spend(windows, _WINDOW_LIFE_S)
        found = [
            Limit(account, of, "minute", limit, used, resets_in_s)
            for (account, of, limit), used in zip(bounded, had, strict=True)
        ]
        for each in found:
            if each.left == 0:
                raise _refusal(each)
        return found

    def _name(self, account: Account, of: Of) -> str:
        return f"{self._clock.now():%Y%m%d%H%M}:{of}:{account.path}"


def _wanted(quotas: Mapping[Account, Quota], per: Per) -> Iterator[tuple[Account, Of, int]]:
    for account, quota in quotas.items():
        for of in _OF:
            limit = getattr(quota, f"{of}_per_{per}")
            if limit is not None:
                yield account, of, limit


def _limits(
    quotas: Mapping[Account, Quota], per: Per, used: Mapping[Account, Use], resets_in_s: float
) -> Iterator[Limit]:
    for account, of, limit in _wanted(quotas, per):
        yield Limit(account, of, per, limit, getattr(used.get(account, Use()), of), resets_in_s)


def _refusal(limit: Limit) -> TooManyRequests:
    QUOTA_REFUSED.labels(limit.account.kind, limit.of, limit.per).inc()
    wait_s = math.ceil(limit.resets_in_s)
    headers = {name.decode(): value.decode() for name, value in _headers([limit])}
    waiting = {"retry-after": str(wait_s), "retry-after-ms": str(math.ceil(limit.resets_in_s * 1000))}
    message = (
        f"{_WHOSE[limit.account.kind]} has used its {limit.limit} {limit.of} of this {limit.per}; "
        f"the next {limit.per} begins in {wait_s} s"
    )
    kind = QuotaExceeded if limit.per == "month" else TooManyRequests
    code = "insufficient_quota" if limit.per == "month" else "rate_limit_exceeded"
    return kind(message, {**headers, **waiting}, code=code)


def _headers(limits: Iterable[Limit]) -> RawHeaders:
    """Return, for requests and tokens of a minute and of a month, the limit of which the least is left.

    What is left counts the request itself: of requests it is one less."""
    tightest: dict[tuple[Per, Of], Limit] = {}
    for each in limits:
        known = tightest.get((each.per, each.of))
        if known is None or each.left_share < known.left_share:
            tightest[each.per, each.of] = each
    found: dict[str, object] = {}
    for (per, of), limit in tightest.items():
        name = "x-ratelimit-{}-" + of if per == "minute" else "x-onward-month-{}-" + of
        found[name.format("limit")] = limit.limit
        found[name.format("remaining")] = max(0, limit.left - (of == "requests"))
        found[name.format("reset")] = f"{math.ceil(limit.resets_in_s)}s"
    return [(name.encode(), str(value).encode()) for name, value in found.items()]


def merged(limits: RawHeaders, more: RawHeaders) -> RawHeaders:
    """Return headers of limits together; of one name that of which less remains, with those that belong to it."""
    if not more:
        return limits
    known = dict(limits)
    found = dict(more)
    for of in (b"requests", b"tokens"):
        for prefix in (b"x-ratelimit-", b"x-onward-month-"):
            names = [prefix + part + b"-" + of for part in (b"limit", b"remaining", b"reset")]
            if int(known.get(names[1], 1 << 62)) < int(found.get(names[1], 1 << 62)):
                for name in names:
                    found[name] = known[name]
    return [*{**known, **found}.items()]
