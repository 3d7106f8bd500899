"""What accounts have used in this month: what the store knows, and what this process has yet to tell it."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from api.http.background import on_a_thread
from core.errors import StoreUnavailable
from core.operations.quotas import Account, Use, month_of, quota_of
from core.ports import Clock, Store
from core.settings import QuotaSettings
from core.telemetry import QUOTA_USED

TELL_S: Final = 1.0
"""How often the store is told, and asked."""
_NOTHING: Final = Use()


class Months:
    """The months of one process, on one event loop; within its context it tells the store."""

    def __init__(self, settings: QuotaSettings, store: Store, clock: Clock) -> None:
        self._settings, self._store, self._clock = settings, store, clock
        self._month = month_of(clock.now())
        self._known: dict[Account, Use] = {}  # as the store had it
        self._wanted: set[Account] = set()  # whose use somebody asked for since the store was told last
        self._untold: dict[str, dict[Account, Use]] = {}  # by month
        self._telling: dict[str, dict[Account, Use]] = {}  # what the store is being told just now
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._keep_telling())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._task is not None:
            await self._task  # what it is telling just now would else be lost with the store's end
        await self.tell()

    async def of(self, accounts: Iterable[Account]) -> dict[Account, Use]:
        """Return what accounts have used in this month.

        While the store does not answer, those that this process has not met count from nothing: nobody goes unserved
        for that, and it hears of them later."""
        self._turn()
        wanted = list(accounts)
        self._wanted.update(wanted)
        unknown = [account for account in wanted if account not in self._known]
        if unknown:
            month = self._month
            found = await on_a_thread(self._ask_if_it_answers, month, unknown)
            if month == self._month:
                for account in unknown:
                    self._known.setdefault(account, found.get(account, _NOTHING))
        return {account: self._used(account) for account in wanted}

    def _used(self, account: Account) -> Use:
        untold, telling = self._untold.get(self._month, {}), self._telling.get(self._month, {})
        known = self._known.get(account, _NOTHING)
        return known.plus(untold.get(account, _NOTHING)).plus(telling.get(account, _NOTHING))

    def add(self, used: Mapping[Account, Use]) -> None:
        """Count what accounts used, on the month that it is now."""
        self._turn()
        _add_to(self._untold.setdefault(self._month, {}), used)

    async def tell(self) -> None:
        """Tell the store what was used, and hear what others used; while it does not answer, keep it for later."""
        self._turn()
        self._telling, self._untold = self._untold, {}
        try:
            for month in list(self._telling):
                await asyncio.to_thread(self._write, month, self._telling[month])
                told = self._telling.pop(month)
                if month == self._month:
                    _add_to(self._known, told)
            self._forget_idle_users()
            if self._known:
                month = self._month
                heard = await asyncio.to_thread(self._ask, month, list(self._known))
                if month == self._month:
                    self._known.update(heard)
        except StoreUnavailable:
            for month, used in self._telling.items():
                _add_to(self._untold.setdefault(month, {}), used)
            self._telling = {}
        self._show()

    def _forget_idle_users(self) -> None:
        """Forget users who have asked for nothing since: there may be very many, and each is soon asked for again."""
        wanted, self._wanted = self._wanted, set()
        self._known = {
            account: use for account, use in self._known.items() if account.kind != "user" or account in wanted
        }

    def _turn(self) -> None:
        """Begin a new month when it has come: nothing is used of it yet, until the store says otherwise."""
        month = month_of(self._clock.now())
        if month != self._month:
            self._month, self._known = month, {}

    def _ask(self, month: str, accounts: list[Account]) -> dict[Account, Use]:
        with self._store.look() as view:
            return view.spending.of_accounts(month, accounts)

    def _ask_if_it_answers(self, month: str, accounts: list[Account]) -> dict[Account, Use]:
        try:
            return self._ask(month, accounts)
        except StoreUnavailable:
            return {}

    def _write(self, month: str, used: Mapping[Account, Use]) -> None:
        with self._store.work() as work:
            work.spending.add(month, used)

    async def _keep_telling(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TELL_S)
            await self.tell()

    def _show(self) -> None:
        for account, use in self._known.items():
            quota = None if account.kind == "user" else quota_of(self._settings, account)
            for of in Use._fields:
                limit = getattr(quota, f"{of}_per_month", None)
                if limit:
                    QUOTA_USED.labels(account.kind, account.name, of).set(getattr(use, of) / limit)


def _add_to(sums: dict[Account, Use], used: Mapping[Account, Use]) -> None:
    for account, use in used.items():
        sums[account] = sums.get(account, _NOTHING).plus(use)
