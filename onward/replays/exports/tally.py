"""What all turns of an export have in common, for the file beside it."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from onward.replays.exports.past import Logged
from onward.replays.provenance import VersionRange


class ExportTally:
    """What all chosen turns have in common, and how many there are."""

    def __init__(self) -> None:
        self.turns = 0
        self.versions = VersionRange()
        self._times: tuple[datetime, datetime] | None = None
        self._tokenizers, self._specs = Counter[str](), Counter[str]()

    def add(self, session: Sequence[Logged]) -> None:
        self.turns += len(session)
        self._tokenizers.update(each.turn.tokenizer_digest for each in session)
        self._specs.update(each.reward.spec for each in session if each.reward is not None)
        times = [each.turn.received_at for each in session]
        self._times = min([*times, *(self._times or ())]), max([*times, *(self._times or ())])
        for each in session:
            self.versions.add_turn(each.turn)

    def told(self) -> dict[str, Any]:
        """Return it for a file in JSON."""
        return {
            "received_at": None if self._times is None else [time.isoformat() for time in self._times],
            "tokenizers": dict(self._tokenizers),
            "reward_specs": dict(self._specs),
        }
