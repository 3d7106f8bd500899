"""What processes say to one another about live state: the operations of the port, with their arguments in order."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from core.ids import InferenceId, Namespace, SessionId
from core.ports import Allowance, Bucket, CountWindow, RecentCounts, TokenChain

TOPIC: Final = "live_state."
KNOWN: Final = f"{TOPIC}known"
COUNTED: Final = f"{TOPIC}counted"
ANNOUNCED: Final = f"{TOPIC}announced"

OPERATIONS: Final[Mapping[str, tuple[Any, Any]]] = {
    "put_inference": (tuple[Namespace, InferenceId, SessionId], None),
    "put_chain": (tuple[Namespace, list[str], TokenChain], None),
    "get_chain": (tuple[Namespace, list[str]], TokenChain | None),
    "get_session": (tuple[Namespace, InferenceId], SessionId | None),
    "has_session": (tuple[Namespace, SessionId], bool),
    "claim": (tuple[Namespace, str, str], str),
    "claim_of": (tuple[Namespace, str], str | None),
    "release_claim": (tuple[Namespace, str, str], None),
    "take": (tuple[list[Bucket]], list[Allowance]),
    "spend": (tuple[list[CountWindow], float], list[int]),
    "counts": (tuple[Namespace], RecentCounts),
}
"""Each operation's arguments, and its answer."""

Counted = list[tuple[Namespace, int, dict[str, int]]]
"""Slots of `api.live_state.counting`: of whom, which, and how often what."""

encode: Final = msgspec.msgpack.Encoder().encode
read_counted: Final = msgspec.msgpack.Decoder(Counted).decode
read_channel: Final = msgspec.msgpack.Decoder(str).decode
READ_ARGUMENTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    name: msgspec.msgpack.Decoder(arguments).decode for name, (arguments, _) in OPERATIONS.items()
}
READ_ANSWER: Final[Mapping[str, Callable[[Any], Any]]] = {
    name: msgspec.msgpack.Decoder(answer).decode for name, (_, answer) in OPERATIONS.items()
}
