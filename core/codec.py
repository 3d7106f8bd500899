"""Events as bytes: a msgpack array `[schema version, event]`, the event a map tagged with its `type`.

A reader takes its own version and every older one. Whatever changes what an event can say, even an added field, makes
a new version, so that an older build stops at it instead of dropping what it does not know.
"""

import msgspec

from core.errors import InvalidRequest, NewerSchema, Undecodable
from core.events import Event

SCHEMA_VERSION = 2


class _Envelope(msgspec.Struct, array_like=True):
    schema: int
    event: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


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
