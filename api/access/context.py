"""The state that routes share beyond the services they were given."""

from dataclasses import dataclass, field

from prometheus_client import Counter

from api.access.consents.kept import KeptConsents
from api.access.consents.taking_back import TakingBack
from api.access.identity import KeyRing
from api.access.low_priority import LowPlaces
from api.access.quotas.admission import Quotas
from api.access.quotas.counted_log import CountedLog
from api.access.services import ApiServices
from api.access.stored_keys import StoredKeys
from api.access.under_way import UnderWay
from api.http.background import Aside, Background
from api.http.large_bodies import Bodies
from api.redaction.policies import Redactors, SessionValues
from api.requests.reader import BodyReader
from core.events import FinishReason
from core.telemetry import TURNS

_MAX_TURN_COUNTERS = 100
_OTHER = "other"


@dataclass(frozen=True)
class ApiContext:
    services: ApiServices
    keys: KeyRing
    reader: BodyReader
    bodies: Bodies
    under_way: UnderWay
    low_places: LowPlaces
    stored_keys: StoredKeys
    redactors: Redactors
    quotas: Quotas
    log: CountedLog
    consents: KeptConsents
    taking_back: TakingBack
    values: SessionValues = field(default_factory=SessionValues)
    background: Background = field(default_factory=Background)
    aside: Aside = field(default_factory=Aside)
    _turn_counters: dict[tuple[str, FinishReason], Counter] = field(default_factory=dict)

    def turn_counter(self, workload: str, finish_reason: FinishReason) -> Counter:
        """Return the counter of a workload's turns that ended for this reason.

        Clients name workloads as they like: past a bound, new ones are counted together."""
        counter = self._turn_counters.get((workload, finish_reason))
        if counter is None:
            full = len(self._turn_counters) >= _MAX_TURN_COUNTERS
            counter = TURNS.labels(_OTHER if full else workload, finish_reason)
            if not full:
                self._turn_counters[workload, finish_reason] = counter
        return counter
