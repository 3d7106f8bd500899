"""What the routes share beyond the services they were given."""

from dataclasses import dataclass, field

from api.background import Background
from api.identity import KeyRing
from api.services import ApiServices

_MAX_WORKLOAD_LABELS = 100
_OTHER = "other"


@dataclass(frozen=True)
class Context:
    services: ApiServices
    keys: KeyRing
    background: Background = field(default_factory=Background)
    _workloads: set[str] = field(default_factory=set)

    def workload_label(self, workload: str) -> str:
        """For metrics. Workloads are the clients' words: past a bound, new ones are counted together."""
        if workload not in self._workloads:
            if len(self._workloads) >= _MAX_WORKLOAD_LABELS:
                return _OTHER
            self._workloads.add(workload)
        return workload
