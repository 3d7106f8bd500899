"""Server-sent events as engines write them: one `data:` line each.

See https://html.spec.whatwg.org/multipage/server-sent-events.html. Lines are not limited in length: an answer that is
sent anew with every token needs that."""

_DATA = b"data:"
_END = b"\n\n"


class EventStream:
    """Feed it what arrives; it tells the payloads of the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        *events, self._rest = (self._rest + piece).split(_END)
        return [event[len(_DATA) :].strip() for event in events if event.startswith(_DATA)]
