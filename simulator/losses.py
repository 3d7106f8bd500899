"""Losses: what a service acknowledged and does not have."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.service import ServiceView


class Acknowledged(Protocol):
    """The acknowledgements that clients noted during a run."""

    @property
    def outcome_ids(self) -> Mapping[str, str]: ...

    def acknowledged(self) -> dict[str, list[str]]:
        """Return, for each session, the ids of the turns and outcomes that the service acknowledged."""
        ...


@dataclass(frozen=True)
class Losses:
    """Turns and outcomes that were acknowledged and are not in the service exactly once."""

    turns: int
    outcomes: int


async def find_losses(known: Acknowledged, service: ServiceView, settle_s: float) -> Losses:
    """Find acknowledged records that are missing, waiting up to `settle_s` for the service to take in the last."""
    acknowledged = known.acknowledged()
    found: dict[str, Counter[str]] = {}
    unsettled = list(acknowledged)
    deadline = time.monotonic() + settle_s
    while True:
        found |= await service.records(unsettled)
        unsettled = [session_id for session_id in unsettled if _wrong(acknowledged[session_id], found.get(session_id))]
        if not unsettled or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    wrong = [record for session_id in unsettled for record in _wrong(acknowledged[session_id], found.get(session_id))]
    outcomes = sum(record in known.outcome_ids for record in wrong)
    return Losses(len(wrong) - outcomes, outcomes)


def _wrong(acknowledged: Sequence[str], found: Counter[str] | None) -> list[str]:
    """Return the records that are not there exactly once: a record that is there twice is as wrong as a missing one."""
    return [record for record in acknowledged if found is None or found[record] != 1]
