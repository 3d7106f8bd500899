"""The number of processes of each stage that `onward run` starts; in mode `embedded` only `api` counts."""

from typing import Final

from pydantic import Field

from core.section import Section
from core.settings.http.api import ApiSettings

_BYTES: Final = ("in_flight_bytes", "under_way_bytes", "under_way_user_bytes")


class ProcessSettings(Section):
    api: int = Field(default=1, ge=0, le=64)
    """Replicas of the API. With a port given, the first has it and the others those after it. In mode `embedded` the
    first is the service itself, with whose engine the others answer; there it is at least 1."""
    ingest: int = Field(default=1, ge=0, le=64)
    """Writers from the log to the store; more than partitions stand by."""
    score: int = Field(default=1, ge=0, le=64)
    """Scorers; more than partitions stand by."""
    release: int = Field(default=1, ge=0, le=8)
    """Release controllers; one decides, the others stand by."""


def bounds_of_each(api: ApiSettings, processes: int) -> ApiSettings:
    """Return the settings of one of so many replicas of the API: of what is counted by process each has its part.

    It takes the largest body, whatever their number. Rates and quotas are counted together, in the live state and the
    store."""
    many = max(1, processes)
    bounds, bodies, low = api.connections, api.bodies, api.low_priority
    parts = {
        "connections": bounds.model_copy(
            update={"total": max(1, bounds.total // many), "per_address": max(1, bounds.per_address // many)}
        ),
        "bodies": bodies.model_copy(
            update={name: max(bodies.max_bytes, getattr(bodies, name) // many) for name in _BYTES}
        ),
        "low_priority": low.model_copy(update={"at_once": min(low.at_once, max(1, low.at_once // many))}),
    }
    return api.model_copy(update=parts)
