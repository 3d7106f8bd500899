"""Quotas: how much namespaces, their users and their keys may ask for, and have stored, in a minute and in a month."""

from typing import Annotated

from pydantic import Field

from core.section import Section
from core.settings.http.api import KEY_NAME

_MOST = 1 << 53  # the last whole number that every live state counts up to exactly


class Quota(Section):
    """What requests may use. Each that is None sets no limit; what exceeds one is refused with 429.

    Requests and tokens are those of requests to generate. Bytes are those of all records that somebody's turns and
    feedback make in the log, also of what the model is never shown."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=_MOST)
    """In a minute of the clock, by all API replicas together."""
    tokens_per_minute: int | None = Field(default=None, ge=1, le=_MOST)
    """Of prompts and answers. A request is let in while any are left; the one that uses them up is answered whole."""
    requests_per_month: int | None = Field(default=None, ge=1, le=_MOST)
    """In a month of UTC."""
    tokens_per_month: int | None = Field(default=None, ge=1, le=_MOST)
    """As in a minute."""
    stored_bytes_per_minute: int | None = Field(default=None, ge=1, le=_MOST)
    """Let in as tokens are: the turn, or the feedback, that uses them up is stored whole."""
    stored_bytes_per_month: int | None = Field(default=None, ge=1, le=_MOST)
    """As in a minute."""


class QuotaSettings(Section):
    namespaces: dict[Annotated[str, Field(min_length=1)], Quota] = Field(default={})
    """Of all that is asked in a namespace, by its name."""
    users: dict[Annotated[str, Field(min_length=1)], Quota] = Field(default={})
    """Of each single user, by the name of the namespace; requests that name no user are not counted here."""
    keys: dict[Annotated[str, Field(pattern=KEY_NAME)], Quota] = Field(default={})
    """Of all keys of one name together, by that name."""
