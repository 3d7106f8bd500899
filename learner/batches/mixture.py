"""The mixture of an update: production's turns come first, and others take at most their share.

What is beyond a share waits for a later update, and leaves the backlog before anything of production does."""

from collections.abc import Iterable
from datetime import datetime

from core.events import Reward
from core.settings import MixtureSettings


class Mixture:
    """The rule by which rewards that wait may enter an update. It remembers when production last had one."""

    def __init__(self, settings: MixtureSettings | None = None) -> None:
        self._settings = settings or MixtureSettings()
        self._production_at: datetime | None = None

    def note(self, rewards: Iterable[Reward]) -> None:
        """Note rewards that came."""
        times = [reward.decided_at for reward in rewards if reward.environment == "production"]
        if times:
            self._production_at = max(*times, self._production_at or times[0])

    def shut_out(self, waiting: Iterable[Reward]) -> list[Reward]:
        """Return what never trains, as the share of its workload is 0."""
        shut = {name for name, share in self._settings.workloads.items() if not share}
        return [reward for reward in waiting if reward.workload in shut] if shut else []

    def available(self, waiting: Iterable[Reward], turns: int, now: datetime) -> list[Reward]:
        """Return what an update of so many turns may be made of, the oldest first."""
        admitted = self._within_workloads(waiting, turns)
        production, simulated = parted(admitted)
        room = self._simulated_beside(min(len(production), turns), now)
        if room is None or len(simulated) <= room:
            return admitted
        left_out = {reward.inference_id for reward in simulated[room:]}
        return [reward for reward in admitted if reward.inference_id not in left_out]

    def choose(self, waiting: Iterable[Reward], most: int, now: datetime) -> list[Reward]:
        """Return the rewards of the next update: of each source the oldest, with others of their sessions.

        So turns of a session share their prefix."""
        production, simulated = parted(self._within_workloads(waiting, most))
        chosen = _by_session(production, most)
        room = self._simulated_beside(len(chosen), now)
        left = most - len(chosen)
        return chosen + _by_session(simulated, left if room is None else min(room, left))

    def _simulated_beside(self, production: int, now: datetime) -> int | None:
        """Return how many simulated turns may stand beside so many of production; None: any number."""
        share = self._settings.simulated
        if share is None or share == 1 or self._is_quiet(now):
            return None
        return int(share * production / (1 - share) + 1e-9)  # 3 of 4 is 3 beside 1, whatever float says

    def _is_quiet(self, now: datetime) -> bool:
        last = self._production_at
        return last is None or (now - last).total_seconds() > self._settings.quiet_s

    def _within_workloads(self, waiting: Iterable[Reward], turns: int) -> list[Reward]:
        """Return the oldest of each workload, as many as its share of so many turns."""
        shares = self._settings.workloads
        room = {name: max(1, int(share * turns)) if share else 0 for name, share in shares.items()}
        admitted = []
        for reward in waiting:
            if reward.workload not in shares:
                admitted.append(reward)
            elif room[reward.workload]:
                room[reward.workload] -= 1
                admitted.append(reward)
        return admitted


def parted(rewards: Iterable[Reward]) -> tuple[list[Reward], list[Reward]]:
    """Return (production's, simulated), each in its order."""
    production: list[Reward] = []
    simulated: list[Reward] = []
    for reward in rewards:
        (production if reward.environment == "production" else simulated).append(reward)
    return production, simulated


def _by_session(rewards: Iterable[Reward], most: int) -> list[Reward]:
    by_session: dict[str, list[Reward]] = {}
    for reward in rewards:
        by_session.setdefault(reward.session_id, []).append(reward)
    chosen: list[Reward] = []
    for of_session in by_session.values():
        if chosen and len(chosen) + len(of_session) > most:
            break
        chosen += of_session
    return chosen[:most]
