"""Identifiers: each its own type, all of them text on the wire but for a version of the base policy, which is a number.

An inference id is a UUIDv7 (RFC 9562) whose last 16 bits are a hash of its session, so that an outcome that names
only the inference finds the partition that owns the session without a look-up.
"""

import hashlib
import uuid
from functools import total_ordering
from typing import Final, NewType, NoReturn, Self

import uuid_utils

InferenceId = NewType("InferenceId", str)
SessionId = NewType("SessionId", str)
GroupId = NewType("GroupId", str)
OutcomeId = NewType("OutcomeId", str)
UserHash = NewType("UserHash", str)
Namespace = NewType("Namespace", str)
PolicyName = NewType("PolicyName", str)
Version = NewType("Version", int)

BASE = PolicyName("base")
"""The policy that speaks for everybody: the given model, and what became of it."""

_MOST_NAME, _MOST_DIGITS = 63, 19
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_LARGEST = (1 << 63) - 1  # that a store can hold
_PADDED_DIGITS = 8


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME and _IN_NAMES.issuperset(text) and text[0] not in "._-"


def _is_number(text: str) -> bool:
    is_decimal = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return is_decimal and (text == "0" or text[0] != "0")


@total_ordering
class PolicyRef:
    """A version of a policy. Versions of one policy are ordered by their number.

    As text it is `acme@12`, and a bare `12` where it is the base policy's: so it stands in logs, messages, labels and
    keys. Records and answers have it in that form too, with the base policy's as a number (`core.codec`).
    """

    __slots__ = ("policy", "version")
    policy: PolicyName
    version: Version

    def __init__(self, policy: PolicyName, version: Version) -> None:
        """Raise ValueError for what is no name (lower-case letters, digits, `.`, `_`, `-`) or no number of 63 bits."""
        if not _is_name(policy):
            raise ValueError(f"{policy!r} is no policy's name")
        if not 0 <= version <= _LARGEST:
            raise ValueError(f"{version} is no version's number")
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "version", version)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` made. Raises ValueError for anything else."""
        name, at, number = text.rpartition("@")
        if not _is_number(number) or bool(at) != bool(name) or name == BASE:
            raise ValueError(f"{text!r} is no version of a policy")
        return cls(PolicyName(name or BASE), Version(int(number)))

    @property
    def padded(self) -> str:
        """The text for names of files, which then sort as versions do: `00000012`, `acme@00000012`."""
        number = f"{self.version:0{_PADDED_DIGITS}d}"
        return number if self.policy == BASE else f"{self.policy}@{number}"

    @classmethod
    def parse_padded(cls, text: str) -> Self:
        """Read what `padded` made. Raises ValueError for anything else."""
        name, at, number = text.rpartition("@")
        ref = cls.parse(f"{name}{at}{number.lstrip('0') or '0'}")
        if ref.padded != text:
            raise ValueError(f"{text!r} is no version of a policy")
        return ref

    def __str__(self) -> str:
        return str(self.version) if self.policy == BASE else f"{self.policy}@{self.version}"

    def __repr__(self) -> str:
        return f"PolicyRef({self.policy!r}, {self.version})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PolicyRef):
            return NotImplemented
        return self.version == other.version and self.policy == other.policy

    def __lt__(self, other: "PolicyRef") -> bool:
        if not isinstance(other, PolicyRef):
            return NotImplemented
        return (self.policy, self.version) < (other.policy, other.version)

    def __hash__(self) -> int:
        return hash((self.policy, self.version))

    def __setattr__(self, name: str, _: object) -> NoReturn:
        raise AttributeError(f"a PolicyRef is frozen: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a PolicyRef is frozen: {name}")

    def __reduce__(self) -> tuple[type[Self], tuple[PolicyName, Version]]:
        return type(self), (self.policy, self.version)


def base_ref(version: int) -> PolicyRef:
    """Name the base policy's version of that number."""
    return PolicyRef(BASE, Version(version))


ANCHOR = base_ref(1)
"""The model as it was given: versions count from 1, and it is allocated before any other."""

UNKNOWN = base_ref(0)
"""No version of ours: an engine was given weights behind our back."""

_ROUTING_BYTES = 2
_UUID_CHARACTERS = 36


def session_routing(session_id: SessionId) -> int:
    """Return the 16 bits of a session's hash that choose its partition."""
    return int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=_ROUTING_BYTES).digest(), "big")


def inference_routing(inference_id: InferenceId) -> int:
    """Return the same 16 bits, read from an inference id. Raises ValueError when the text is not a UUID."""
    return int.from_bytes(uuid.UUID(inference_id).bytes[-_ROUTING_BYTES:], "big")


def new_inference_id(session_id: SessionId) -> InferenceId:
    return InferenceId(f"{str(uuid_utils.uuid7())[: -2 * _ROUTING_BYTES]}{session_routing(session_id):04x}")


def inference_id_at(milliseconds: int) -> InferenceId:
    """Return what lies before the ids of all inferences from that time on, and after earlier ones.

    The time is in milliseconds since 1970."""
    text = f"{max(0, milliseconds):012x}"
    return InferenceId(f"{text[:8]}-{text[8:]}")


def new_session_id() -> SessionId:
    return SessionId(str(uuid_utils.uuid7()))


def new_group_id() -> GroupId:
    return GroupId(str(uuid_utils.uuid7()))


WITHDRAWAL: Final = "withdrawal:"
DERIVED: Final = "derived:"
JUDGED: Final = "judged:"
CONSENT: Final = "consent:"
RESERVED: Final = (WITHDRAWAL, DERIVED, JUDGED, CONSENT)
"""What ids of outcomes begin with that follow from what a client may know, and no client's ids do: whoever gave such an
id to an outcome of its own before would keep ours out."""


def new_outcome_id() -> OutcomeId:
    return OutcomeId(str(uuid_utils.uuid7()))


def is_uuid(text: str) -> bool:
    """Return whether the text is a UUID, with four hyphens and nothing around it, as ids of ours are."""
    if len(text) != _UUID_CHARACTERS:
        return False
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
