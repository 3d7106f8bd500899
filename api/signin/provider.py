"""The identity provider, by OpenID Connect: the way there, and what its answer says (authorization code with PKCE)."""

import time
from typing import Any, Final

import httpx
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from api.access.sessions import BY, Begun, Session
from core.errors import Forbidden, Unavailable
from core.settings import SignInSettings

_TIMEOUT_S: Final = 10.0
_KEPT_S: Final = 300.0  # what the provider says of itself
_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Those whose keys the provider alone has: a token signed with a secret that we share proves nothing."""
_LEEWAY_S: Final = 60
_LONGEST_NAME: Final = 128


class ProviderUnavailable(Unavailable):
    """The identity provider does not answer as it should."""


class Provider:
    """One provider. Used from one event loop."""

    def __init__(self, settings: SignInSettings) -> None:
        self._settings = settings
        self._facts: tuple[float, dict[str, Any]] | None = None

    @property
    def back(self) -> str:
        """The URL at which browsers come back."""
        return f"{self._settings.public_url.rstrip('/')}/signin/done"

    async def way_there(self, begun: Begun) -> str:
        """Return the URL to which a browser is sent. Raises ProviderUnavailable."""
        facts = await self._ask_facts()
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                facts["authorization_endpoint"], state=begun.state, nonce=begun.nonce, code_verifier=begun.verifier
            )
        return str(url)

    async def who(self, code: str, begun: Begun) -> Session:
        """Return who came back with a code. Raises ProviderUnavailable, and Forbidden for who may not come in."""
        facts = await self._ask_facts()
        try:
            async with self._client() as client:
                token = await client.fetch_token(facts["token_endpoint"], code=code, code_verifier=begun.verifier)
                answer = await client.request("GET", facts["jwks_uri"], withhold_token=True)
            claims = self._checked(str(token["id_token"]), answer.json(), begun)
        except (OAuthError, JoseError, ValueError, KeyError) as error:
            raise Forbidden(
                f"the identity provider's answer is not to be believed: {type(error).__name__}", code="sign_in_failed"
            ) from error
        except httpx.HTTPError as error:
            raise ProviderUnavailable(f"the identity provider does not answer: {type(error).__name__}") from error
        return self._session(claims)

    def _checked(self, id_token: str, keys: Any, begun: Begun) -> dict[str, Any]:
        """Return the claims of a token for us, of this sign-in. Raises JoseError, ValueError."""
        token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=_ALGORITHMS)
        wanted = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": str(self._settings.issuer)},
            aud={"essential": True, "value": self._settings.client_id},
            nonce={"essential": True, "value": begun.nonce},
            exp={"essential": True},
            sub={"essential": True},
        )
        wanted.validate(token.claims)
        return dict(token.claims)

    def _session(self, claims: dict[str, Any]) -> Session:
        settings = self._settings
        found: Any = claims
        for part in settings.roles_claim.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        roles = tuple(name for name in settings.roles if name in named)
        if not roles:
            raise Forbidden("none of your roles may use this console; ask those who run it", code="no_role")
        if len({settings.roles[name].namespace for name in roles}) > 1:
            raise Forbidden(f"your roles {', '.join(roles)} belong to several namespaces", code="several_namespaces")
        name = str(claims.get(settings.name_claim) or claims["sub"])
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise Forbidden("your name is too long, or has characters that are not printable", code="bad_name")
        return Session(BY + name, roles)

    async def _ask_facts(self) -> dict[str, Any]:
        """Return what the provider says of itself, which is asked anew now and then."""
        now = time.monotonic()
        if self._facts is not None and now - self._facts[0] < _KEPT_S:
            return self._facts[1]
        issuer = str(self._settings.issuer)
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
                answer = await client.get(issuer.rstrip("/") + "/.well-known/openid-configuration")
                answer.raise_for_status()
                facts: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise ProviderUnavailable(f"the identity provider does not answer: {type(error).__name__}") from error
        if facts.get("issuer") != issuer:
            raise ProviderUnavailable(f"api.sign_in.issuer: the provider calls itself {facts.get('issuer')!r}")
        self._facts = now, facts
        return facts

    def _client(self) -> AsyncOAuth2Client:
        settings = self._settings
        return AsyncOAuth2Client(
            settings.client_id,
            settings.client_secret or None,
            scope=" ".join(settings.ask_for),
            redirect_uri=self.back,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if settings.client_secret else "none",
            timeout=_TIMEOUT_S,
        )
