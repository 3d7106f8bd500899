"""Signing in to the console with an identity provider that speaks OpenID Connect."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from core.section import Section
from core.settings.http.scopes import Scope

_LEAST_SECRET = 16


class RoleSettings(Section):
    namespace: str = Field(min_length=1)
    """The tenant whose things people with this role see."""
    scopes: tuple[Scope, ...] = ("read",)
    """Their rights, as of a key."""


class SignInSettings(Section):
    issuer: str | None = None
    """URL of the identity provider, as its tokens name it; None: nobody signs in, and the console asks for a key."""
    client_id: str = "onward"
    """The name by which it knows this service."""
    client_secret: str = Field(default="", repr=False)
    """What this service proves itself with to it; empty: a public client, which PKCE protects alone."""
    public_url: str = ""
    """URL by which browsers reach this service; the provider sends them back to `public_url` with `/signin/done`."""
    session_key: str = Field(default="", repr=False)
    """The key that signs session cookies, the same on all API replicas; at least 16 characters."""
    session_s: float = Field(default=8 * 3600.0, gt=0)
    """How long somebody stays signed in."""
    ask_for: tuple[str, ...] = ("openid", "email", "profile")
    """Scopes that the provider is asked for."""
    name_claim: str = "email"
    """Claim of the ID token under which deeds are recorded; where it is missing, `sub`."""
    roles_claim: str = "roles"
    """Claim that lists somebody's roles, or has one; dots lead into it (`realm_access.roles`)."""
    roles: dict[Annotated[str, Field(min_length=1)], RoleSettings] = Field(default={})
    """What each role may do, by the provider's name of it. Others are not looked at; who has none is refused."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.issuer is None:
            return self
        for name in ("issuer", "public_url"):
            if urlsplit(getattr(self, name)).scheme not in ("https", "http"):
                raise ValueError(f"{name}: must be an https URL, or http where nothing is at stake")
        if len(self.session_key) < _LEAST_SECRET:
            raise ValueError(f"session_key: must have at least {_LEAST_SECRET} characters")
        if "openid" not in self.ask_for:
            raise ValueError("ask_for: must have openid")
        if not self.roles:
            raise ValueError("roles: without any, nobody could sign in")
        return self
