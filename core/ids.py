"""Identifiers: each its own type, all of them text on the wire.

An inference id is a UUIDv7 (RFC 9562) whose last 16 bits are a hash of its session, so that an outcome that names
only the inference finds the partition that owns the session without a look-up.
"""

import hashlib
import uuid
from typing import NewType

import uuid_utils

InferenceId = NewType("InferenceId", str)
SessionId = NewType("SessionId", str)
GroupId = NewType("GroupId", str)
OutcomeId = NewType("OutcomeId", str)
UserHash = NewType("UserHash", str)
Namespace = NewType("Namespace", str)
Version = NewType("Version", int)

ANCHOR = Version(1)
"""The model as it was given: versions count from 1, and it is allocated before any other."""

UNKNOWN = Version(0)
"""No version of ours: an engine was given weights behind our back."""

_ROUTING_BYTES = 2


def session_routing(session_id: SessionId) -> int:
    """Return the 16 bits of a session's hash that choose its partition."""
    return int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=_ROUTING_BYTES).digest(), "big")


def inference_routing(inference_id: InferenceId) -> int:
    """Return the same 16 bits, read from an inference id. Raises ValueError when the text is not a UUID."""
    return int.from_bytes(uuid.UUID(inference_id).bytes[-_ROUTING_BYTES:], "big")


def new_inference_id(session_id: SessionId) -> InferenceId:
    return InferenceId(f"{str(uuid_utils.uuid7())[: -2 * _ROUTING_BYTES]}{session_routing(session_id):04x}")


def new_session_id() -> SessionId:
    return SessionId(str(uuid_utils.uuid7()))


def new_group_id() -> GroupId:
    return GroupId(str(uuid_utils.uuid7()))


def new_outcome_id() -> OutcomeId:
    return OutcomeId(str(uuid_utils.uuid7()))


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
