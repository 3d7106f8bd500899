"""The windows of one workload: its first turns, its latest, those whose outcomes can be known, and the best of these.

The latest simulated turns and the latest of production have windows of their own, too.

As many turns as a window holds wait to ripen, spread over the time that this takes. So memory does not grow with
traffic, and which turns wait does not depend on their outcomes.

No user has more than a fifth of a window, of the turns that wait to ripen, or of the reference. Without this bound one
busy user could keep the monitors silent, which say nothing of fewer than five users. Monitors of the users themselves
look at ripe turns without this bound."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from core import codec
from core.events import Environment
from core.ids import InferenceId
from core.reward_spec import Role
from core.settings import MonitorSettings
from scoring.monitors import LEAST, LEAST_UNITS, MovedTurns, WatchedTurn, Window, WindowTurns, floor, with_roles
from scoring.watching.turns import WatchedTurns


class Held:
    """The turns of one window, by id, the oldest first, with a bound on the turns of one user.

    It holds its turns in `turns`, and releases those that it drops."""

    def __init__(self, turns: WatchedTurns, most: int, *, of_one: int | None = None) -> None:
        """`most`: how many turns it holds; `of_one`: how many of them may be one user's, by default a fifth."""
        self._turns, self._most = turns, most
        self._of_one = most // LEAST_UNITS if of_one is None else of_one
        self._ids: deque[InferenceId] = deque()
        self._of_user: dict[str, deque[InferenceId]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[InferenceId]:
        return iter(self._ids)

    def add(self, turn: WatchedTurn) -> None:
        """Add the newest turn; if its user now has too many in the window, drop that user's oldest."""
        turn = self._turns.hold(turn)
        self._ids.append(turn.inference_id)
        own = self._of_user.setdefault(turn.unit, deque())
        own.append(turn.inference_id)
        if len(own) > self._of_one:
            self._ids.remove(own[0])
            self._turns.release(own.popleft())

    def shorten(self, before_s: float = float("-inf")) -> None:
        """Drop the oldest turns: those beyond the bound, and those from before a time."""
        while self._ids and (len(self._ids) > self._most or self._turns[self._ids[0]].at_s < before_s):
            oldest = self._ids.popleft()
            unit = self._turns[oldest].unit
            self._of_user[unit].popleft()
            if not self._of_user[unit]:
                del self._of_user[unit]
            self._turns.release(oldest)


_FORMAT = 1


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A reference in the store, and the best turns. `ripe`: no further outcomes of its turns are expected."""

    form: int
    ripe: bool
    turns: tuple[WatchedTurn, ...]
    best: tuple[WatchedTurn, ...] = ()


_encode = codec.encoder().encode
_decode = codec.decoder(_Kept).decode


class Workload:
    """The windows of a workload. Raises msgspec.DecodeError for a reference that another build wrote."""

    def __init__(
        self,
        turns: WatchedTurns,
        settings: MonitorSettings,
        maturity_s: float,
        roles: Mapping[str, Role],
        reference: bytes | None = None,
    ) -> None:
        self._turns, self._settings, self.maturity_s = turns, settings, maturity_s
        kept = _Kept(_FORMAT, False, ()) if reference is None else _decode(reference)
        if kept.form != _FORMAT:
            raise msgspec.DecodeError(f"a reference of form {kept.form}")
        before = [with_roles(turn, roles) for turn in kept.turns]
        self._reference = [turn.inference_id for turn in before]
        self._of_reference = Counter(turn.unit for turn in before)
        self._frozen = WindowTurns(before) if kept.ripe else None
        for turn in () if kept.ripe else before:
            turns.hold(turn)
        self._best = WindowTurns(kept.best)
        self._ripened = 0  # turns since the best were looked for
        self._saved = self._state
        most = settings.window_turns
        self._most_of_one = most // LEAST_UNITS
        self._ripening: deque[InferenceId] = deque()
        self._ripening_of: Counter[str] = Counter()  # by user
        self._latest, self._ripe = Held(turns, most), Held(turns, most)
        self._ripening_of_all: deque[InferenceId] = deque()  # this and the next: any number of them is one user's
        self._ripe_of_all = Held(turns, most, of_one=most)
        self._sides: dict[Environment, Held] = {"simulated": Held(turns, most), "production": Held(turns, most)}
        self._looked_at = {name: MovedTurns() for name in ("latest", "ripe", "ripe_of_all", "reference")}
        self._admitted_s = self._admitted_of_all_s = float("-inf")
        self._users = {turn.unit for turn in before[:: max(1, len(before) // LEAST)]}  # some, until there are enough
        self.has_news = False

    def add(self, turn: WatchedTurn) -> None:
        """Add a turn; turns come in order of time."""
        if not self.has_users:
            self._users.add(turn.unit)
        if self._belongs_to_reference(turn):
            self._hold(self._reference, turn)
            self._of_reference[turn.unit] += 1
        self._admit(turn)
        for window in (self._latest, self._sides[turn.environment]):
            window.add(turn)
            window.shorten()
        self.has_news = True

    def _admit(self, turn: WatchedTurn) -> None:
        """Have a turn ripen, where enough time has passed since the last one that does."""
        pause_s = self.maturity_s / self._settings.window_turns
        if turn.at_s - self._admitted_of_all_s >= pause_s:
            self._admitted_of_all_s = turn.at_s
            self._hold(self._ripening_of_all, turn)
        if turn.at_s - self._admitted_s >= pause_s and self._ripening_of[turn.unit] < self._most_of_one:
            self._admitted_s = turn.at_s
            self._ripening_of[turn.unit] += 1
            self._hold(self._ripening, turn)

    def pass_time(self, now_s: float, rewarded_s: float) -> None:
        """Move turns that are ripe. `rewarded_s`: rewards are known up to then."""
        until_s = rewarded_s - self.maturity_s
        while self._ripening and (turn := self._turns[self._ripening[0]]).at_s <= until_s:
            self._ripe.add(turn)
            self._turns.release(self._ripening.popleft())
            self._ripening_of -= Counter((turn.unit,))
            self._ripened += 1
            self.has_news = True
        while self._ripening_of_all and (turn := self._turns[self._ripening_of_all[0]]).at_s <= until_s:
            self._ripe_of_all.add(turn)
            self._turns.release(self._ripening_of_all.popleft())
            self.has_news = True
        for window in (self._latest, self._ripe, self._ripe_of_all, *self._sides.values()):
            window.shorten(now_s - self._settings.window_s)
        if self._frozen is None and self._is_whole() and self._turns[self._reference[-1]].at_s <= until_s:
            self._frozen = WindowTurns(self._turns.get(self._reference))
            for each in self._reference:
                self._turns.release(each)
        if self._ripened >= max(LEAST, len(self._ripe)):
            self._ripened = 0
            self._look_for_the_best()

    def _look_for_the_best(self) -> None:
        """Keep the ripe turns if they are the best so far. It is asked once as many have ripened as there are."""
        turns = WindowTurns(self._turns.get(self._ripe))
        found, known = floor(turns), floor(self._best)
        if found is not None and (known is None or found > known):
            self._best = turns

    def window(self, *, ripe: bool) -> Window:
        """Return the window, without a reference while that is not whole: some monitors have bounds of their own."""
        reference = self._known_reference(ripe=ripe)
        if not ripe:
            return Window(self._moved("latest", self._latest), reference)
        of_all = self._moved("ripe_of_all", self._ripe_of_all)
        return Window(self._moved("ripe", self._ripe), reference, self._best, of_all)

    def sides(self) -> Window:
        """Return the latest simulated turns as recent ones, with the latest of production as their reference.

        Each has a window of its own: a burst of simulated turns does not push those of users out."""
        return Window(*(WindowTurns(self._turns.get(self._sides[side])) for side in ("simulated", "production")))

    def _known_reference(self, *, ripe: bool) -> WindowTurns:
        if self._frozen is not None:
            return self._frozen
        return self._moved("reference", self._reference) if self._is_whole() and not ripe else WindowTurns()

    def _moved(self, name: str, window: Iterable[InferenceId]) -> WindowTurns:
        self._looked_at[name] = MovedTurns(self._turns.get(window), self._looked_at[name])
        return self._looked_at[name]

    @property
    def has_users(self) -> bool:
        """True once so many have used it that monitors may say something of it."""
        return len(self._users) >= LEAST_UNITS

    @property
    def is_unsaved(self) -> bool:
        """True when there is news since it was saved, and the reference is large enough to be worth it."""
        return self._state != self._saved and len(self._reference) >= LEAST

    @property
    def _state(self) -> tuple[int, bool, WindowTurns]:
        return len(self._reference), self._frozen is not None, self._best

    def reference(self) -> bytes:
        """Return the reference and the best turns, encoded to be saved."""
        turns = self._turns.get(self._reference) if self._frozen is None else self._frozen
        return _encode(_Kept(_FORMAT, self._frozen is not None, tuple(turns), tuple(self._best)))

    def mark_saved(self) -> None:
        self._saved = self._state

    def close(self) -> None:
        """Release all turns."""
        kept = self._reference if self._frozen is None else []
        held: list[Iterable[InferenceId]] = [self._ripening, self._ripening_of_all, kept]
        held += [self._latest, self._ripe, self._ripe_of_all, *self._sides.values()]
        for each in chain.from_iterable(held):
            self._turns.release(each)

    def _belongs_to_reference(self, turn: WatchedTurn) -> bool:
        if self._is_whole() or turn.inference_id in self._reference:  # a restart reads those kept again
            return False
        return self._of_reference[turn.unit] < self._settings.reference_turns // LEAST_UNITS

    def _is_whole(self) -> bool:
        return self._frozen is not None or len(self._reference) >= self._settings.reference_turns

    def _hold(self, window: "deque[InferenceId] | list[InferenceId]", turn: WatchedTurn) -> None:
        self._turns.hold(turn)
        window.append(turn.inference_id)
