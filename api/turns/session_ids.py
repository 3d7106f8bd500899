"""Ids of sessions: their form, and those that clients send by headers of their own.

`x-session-id` names a session, and only its turns are looked at. A client's own header is a hint: the session is looked
at first; where it does not know the history, as after a client resumed a conversation under another id, any session of
the same user may. `prompt_cache_key` is no hint, since many conversations may share one (OpenAI, "Prompt caching")."""

import re
from typing import Final

from api.http.asgi import Headers, hint_text
from core.ids import SessionId

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
HINTS: Final = (b"thread-id", b"session-id", b"session_id", b"conversation_id", b"x-session-affinity")


def is_id(value: str) -> bool:
    """Return whether the value has the form of an id: no record has another, and not every store could hold it."""
    return _ID.fullmatch(value) is not None


def session_hint(headers: Headers) -> SessionId | None:
    """Return the session that a client's own header names; what has not the form of an id is no hint."""
    for name in HINTS:
        given = hint_text(headers, name) if name in headers else None
        if given is not None and is_id(given):
            return SessionId(given)
    return None
