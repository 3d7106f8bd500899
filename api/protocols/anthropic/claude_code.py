"""Claude Code's `metadata.user_id`, which names the user and the session at once.

It is `user_DEVICE_account_ACCOUNT_session_SESSION`, or since version 2.1.78 a JSON object with the names `device_id`,
`account_uuid` and `session_id`; the account may be empty. Both spellings give one user."""

from typing import Final

import msgspec

from core.ids import SessionId
from core.text.patterns import Pattern

_MOST_CHARACTERS: Final = 1024
_ID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_WHOLE = Pattern(f"^(user_[0-9a-zA-Z]+_account_(?:{_ID})?)_session_({_ID})$")


class _Named(msgspec.Struct):
    device_id: str
    account_uuid: str
    session_id: str


_decode = msgspec.json.Decoder(_Named).decode


def user_and_session(user_id: str | None) -> tuple[str | None, SessionId | None]:
    """Return the user and the session that a request names; one that is not Claude Code's names a user alone."""
    if user_id is None or len(user_id) > _MOST_CHARACTERS:
        return user_id, None
    found = _WHOLE.groups(_as_one(user_id))
    return (found[0][0], SessionId(found[0][1])) if found else (user_id, None)


def _as_one(user_id: str) -> str:
    """Return the former spelling of what JSON names, if it does."""
    if not user_id.startswith("{"):
        return user_id
    try:
        named = _decode(user_id)
    except msgspec.DecodeError:
        return user_id
    return f"user_{named.device_id}_account_{named.account_uuid}_session_{named.session_id}"
