"""Quotas of requests, tokens and stored bytes, by namespace, key and user, in a minute and in a month.

A minute is counted in the live state, which all API replicas share. A month is counted in the store: each replica adds
what it served about once a second, and hears then what others did; so a restart forgets nothing, and two replicas let
pass at most what they serve in a second more than one would.

A request is let in while some tokens are left, since nobody knows how long its answer will be; what it used is counted
when it ends. So the last one may pass the limit, and the next is refused. It is the same with the bytes of what is
recorded: a turn that was generated is never thrown away for them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from api.access.identity import Identity
from api.access.quotas.limits import TooManyRequests
from api.access.quotas.months import Months
from api.http.asgi import RawHeaders
from core.events import Priority
from core.ids import Namespace, UserHash
from core.operations.quotas import Account, Use, quota_of, seconds_left_in_minute, seconds_left_in_month
from core.ports import Clock, CountWindow, LiveState
from core.settings import Quota, QuotaSettings
from core.telemetry import QUOTA_REFUSED

Of = Literal["requests", "tokens", "stored_bytes"]
Per = Literal["minute", "month"]
_WINDOW_LIFE_S: Final = 120.0
_UNLIMITED: Final[RawHeaders] = []
_OF: Final[tuple[Of, ...]] = ("requests", "tokens", "stored_bytes")
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


class Quotas:
    """The quotas of one process, on one event loop. `is_priced`: what each namespace uses is counted for its cost."""

    def __init__(
        self, settings: QuotaSettings, live_state: LiveState, months: Months, clock: Clock, *, is_priced: bool
    ) -> None:
        self._settings, self._live_state, self._months, self._clock = settings, live_state, months, clock
        self._is_priced = is_priced
        self.are_set = is_priced or settings != QuotaSettings()

    async def admit(self, identity: Identity, priority: Priority | None = None) -> RawHeaders:
        """Count a request of a key to generate; return how its limits stand.

        Raises TooManyRequests where its namespace or its keys have nothing left."""
        return await self._admit(_of_key(identity), _OF, priority) if self.are_set else _UNLIMITED

    async def admit_user(self, namespace: Namespace, user: UserHash | None, priority: Priority | None) -> RawHeaders:
        """Count a request of a user to generate, as `admit` does."""
        return await self._admit(_of_user(namespace, user), _OF, priority) if self.are_set else _UNLIMITED

    async def admit_record(self, identity: Identity, user: UserHash | None) -> None:
        """Raise TooManyRequests where a namespace, its keys or a user may have nothing more stored."""
        if self.are_set:
            await self._admit([*_of_key(identity), *_of_user(identity.namespace, user)], ("stored_bytes",), None)

    async def charge(self, identity: Identity, user: UserHash | None, use: Use) -> None:
        """Count what was used, on all whose it is."""
        if not self.are_set:
            return
        quotas = self._quotas([*_of_key(identity), *_of_user(identity.namespace, user)])
        if not quotas:
            return
        self._months.add(dict.fromkeys(quotas, use))
        windows = [
            CountWindow(name=self._name(account, of), add=getattr(use, of))
            for account, of, _ in _wanted(quotas, "minute", _OF)
            if getattr(use, of)
        ]
        if windows:
            await self._live_state.spend(windows, _WINDOW_LIFE_S)

    def _quotas(self, accounts: Iterable[Account]) -> dict[Account, Quota]:
        """Return what is counted, with its quota, which may set no limit."""
        found = {account: quota_of(self._settings, account) for account in accounts}
        if self._is_priced:
            found |= {each: quota or Quota() for each, quota in found.items() if each.kind == "namespace"}
        return {account: quota for account, quota in found.items() if quota is not None}

    async def _admit(self, accounts: Iterable[Account], kinds: Sequence[Of], priority: Priority | None) -> RawHeaders:
        quotas = self._quotas(accounts)
        now = self._clock.now()
        by_month = [*_wanted(quotas, "month", kinds)]
        used = await self._months.of({account for account, _, _ in by_month}) if by_month else {}
        resets_in_s = seconds_left_in_month(now)
        monthly = [
            Limit(account, of, "month", limit, getattr(used[account], of), resets_in_s)
            for account, of, limit in by_month
        ]
        _require_some(monthly)
        share = 2 if priority == "low" else 1  # it leaves half of a minute's to all others
        by_minute = await self._spend_minute(quotas, kinds, share, seconds_left_in_minute(now))
        if quotas and "requests" in kinds:
            self._months.add(dict.fromkeys(quotas, Use(requests=1)))
        return _headers([*by_minute, *monthly])

    async def _spend_minute(
        self, quotas: Mapping[Account, Quota], kinds: Sequence[Of], share: int, resets_in_s: float
    ) -> list[Limit]:
        """Count a request in this minute, of whose limits it may use this share, and return how they stood."""
        bounded = [(account, of, limit // share or 1) for account, of, limit in _wanted(quotas, "minute", kinds)]
        if not bounded:
            return []
        windows = [
            CountWindow(name=self._name(account, of), add=int(of == "requests"), limit=limit)
            for account, of, limit in bounded
        ]
        had = await self._live_state.spend(windows, _WINDOW_LIFE_S)
        found = [
            Limit(account, of, "minute", limit, used, resets_in_s)
            for (account, of, limit), used in zip(bounded, had, strict=True)
        ]
        _require_some(found)
        return found

    def _name(self, account: Account, of: Of) -> str:
        return f"{self._clock.now():%Y%m%d%H%M}:{of}:{account.path}"


def _of_key(identity: Identity) -> list[Account]:
    namespace = identity.namespace
    return [Account("namespace", namespace, namespace), Account("key", namespace, identity.by)]


def _of_user(namespace: Namespace, user: UserHash | None) -> list[Account]:
    return [] if user is None else [Account("user", namespace, user)]


def _wanted(quotas: Mapping[Account, Quota], per: Per, kinds: Sequence[Of]) -> Iterator[tuple[Account, Of, int]]:
    for account, quota in quotas.items():
        for of in kinds:
            limit = getattr(quota, f"{of}_per_{per}")
            if limit is not None:
                yield account, of, limit


def _require_some(limits: Iterable[Limit]) -> None:
    for each in limits:
        if each.left == 0:
            raise _refusal(each)


def _refusal(limit: Limit) -> TooManyRequests:
    QUOTA_REFUSED.labels(limit.account.kind, limit.of, limit.per).inc()
    wait_s = math.ceil(limit.resets_in_s)
    headers = {name.decode(): value.decode() for name, value in _headers([limit])}
    waiting = {"retry-after": str(wait_s), "retry-after-ms": str(math.ceil(limit.resets_in_s * 1000))}
    message = (
        f"{_WHOSE[limit.account.kind]} has used its {limit.limit} {_words(limit.of, ' ')} of this {limit.per}; "
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
        name = ("x-ratelimit-{}-" if per == "minute" else "x-onward-month-{}-") + _words(of, "-")
        found[name.format("limit")] = limit.limit
        found[name.format("remaining")] = max(0, limit.left - (of == "requests"))
        found[name.format("reset")] = f"{math.ceil(limit.resets_in_s)}s"
    return [(name.encode(), str(value).encode()) for name, value in found.items()]


def _words(of: Of, between: str) -> str:
    return of.replace("_", between)


def merged(limits: RawHeaders, more: RawHeaders) -> RawHeaders:
    """Return headers of limits together; of one name that of which less remains, with those that belong to it."""
    if not more:
        return limits
    known = dict(limits)
    found = dict(more)
    for of in _OF:
        for prefix in (b"x-ratelimit-", b"x-onward-month-"):
            names = [prefix + part + b"-" + _words(of, "-").encode() for part in (b"limit", b"remaining", b"reset")]
            if int(known.get(names[1], 1 << 62)) < int(found.get(names[1], 1 << 62)):
                for name in names:
                    found[name] = known[name]
    return [*{**known, **found}.items()]
