"""Events as bytes: a msgpack array `[schema version, event]`, the event a map tagged with its `type`.

A reader takes its own version and every older one. Whatever changes what an event can say, even an added field, makes
a new version, so that an older build stops at it instead of dropping what it does not know.

Since schema 7 a version says which eval suites were kept out of it. Since schema 6 a tool call, an outcome and a reward
say which tokens they are about, in what words, and what a user wrote instead; and a reward whose outcomes it had in
sight, and an outcome whether its words may teach. Since schema 5 a reward may be void, and says whether its turn was
simulated. Since schema 4 a turn says which client asked, in which protocol, and what of its request was ignored; it may
have followed a grammar, or name the sets of ids that it was sampled from. Since schema 3 a version may be of another
policy than the base one; up to schema 2 it is a number, and of that one.

A version of the base policy is a number in every record and answer, as it was when there was no other policy; any other
is text. So what speaks of the base policy alone is, byte for byte, what it was.
"""

from typing import Any, TypeVar

import msgspec

from core.errors import InvalidRequest, NewerSchema, Undecodable
from core.events import Event
from core.ids import BASE, PolicyRef, base_ref

SCHEMA_VERSION = 7
T = TypeVar("T")


def plain(value: Any) -> int | str:
    """Return a value of ours as it is recorded: the `enc_hook` of an encoder."""
    if isinstance(value, PolicyRef):
        return value.version if value.policy == BASE else str(value)
    raise NotImplementedError(f"{type(value).__name__} is no type that is recorded")


def typed(kind: type, value: Any) -> PolicyRef:
    """Read what `plain` made: the `dec_hook` of a decoder.

    Raises ValueError, of which msgspec makes an error of its own that names the field.
    """
    if kind is not PolicyRef:
        raise NotImplementedError(f"{kind.__name__} is no type that is recorded")
    if isinstance(value, int) and not isinstance(value, bool):
        return base_ref(value)
    if isinstance(value, str):  # a number, too, where it is a key in JSON
        return PolicyRef.parse(value)
    raise ValueError(f"{value!r} is no version of a policy")


def encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=plain)


def decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    return msgspec.msgpack.Decoder(kind, dec_hook=typed)


def to_builtins(value: Any) -> Any:
    """Return it as plain dicts, lists, numbers and text, for an answer in JSON."""
    return msgspec.to_builtins(value, enc_hook=plain)


class _Envelope(msgspec.Struct, array_like=True):
    schema: int
    event: msgspec.Raw


_encoder = encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event, dec_hook=typed)


def encode(event: Event) -> bytes:
    """Encode an event. Raises InvalidRequest for what msgpack cannot hold.

    That is integers beyond 64 bits, half a surrogate pair, and what is nested too deep: only text of clients can
    contain them."""
    try:
        return _encoder.encode((SCHEMA_VERSION, event))
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"the request holds a value that cannot be recorded: {error}") from error


def decode(raw: bytes) -> Event:
    """Decode an event. Raises NewerSchema for a newer build's record, else Undecodable with the reason."""
    try:
        envelope = _envelopes.decode(raw)
        if envelope.schema > SCHEMA_VERSION:
            raise NewerSchema(f"schema {envelope.schema}; this build reads up to {SCHEMA_VERSION}: upgrade it")
        if envelope.schema < 1:
            raise Undecodable(f"no schema version: {envelope.schema}")
        return _events.decode(envelope.event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(str(error)) from error
