"""The partition to which an event belongs: the same on every adapter of the log."""

import zlib

from core.events import Alarm, Completion, DeadLetter, Event, Outcome, PolicyVersion, Release, Reward, SessionEnded
from core.ids import inference_routing, session_routing


def partition_of(event: Event, partitions: int) -> int:
    """Return which of `partitions` an event belongs to.

    Events of one session are in one partition, in order, and so are those of one version. Raises ValueError for an
    outcome whose inference id is not a UUID."""
    match event:
        case Completion() | SessionEnded() | Reward():
            routing = session_routing(event.session_id)
        case Outcome(session_id=None, inference_id=None):
            raise AssertionError("an outcome names an inference or a session")
        case Outcome(session_id=None, inference_id=inference_id):
            assert inference_id is not None
            routing = inference_routing(inference_id)  # holds the very bits of its session's hash
        case Outcome(session_id=session_id):
            assert session_id is not None
            routing = session_routing(session_id)
        case PolicyVersion() | Release():
            routing = event.version.version
        case Alarm():
            routing = zlib.crc32(event.monitor.encode())
        case DeadLetter():
            routing = event.partition
    return routing % partitions
