"""One request that tells a target of an alert: signed, with an idempotency key for a target that gets it twice.

The signature is that of Standard Webhooks (https://www.standardwebhooks.com): `v1,` and the base64 of the HMAC-SHA256
of `id.seconds.body`."""

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Final

import httpx

from core.errors import OnwardError
from core.operations.alerts import Alert
from core.settings import AlertTargetSettings
from scoring.alerts.payloads import alertmanager_body, webhook_body

_FINAL: Final = frozenset({400, 406, 410, 411, 413, 415, 422})
"""Answers after which the same request would have the same answer for ever."""
_LONGEST_PAUSE_S: Final = 3600.0  # that a target may ask for


class Untold(OnwardError):
    """A target was not told. `is_final`: trying again would not help; `after_s`: how long it asks to wait."""

    def __init__(self, why: str, detail: str, *, is_final: bool = False, after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.why, self.is_final, self.after_s = why, is_final, after_s


def signature(secret: str, key: str, seconds: int, body: bytes) -> str:
    mac = hmac.new(secret.encode(), f"{key}.{seconds}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


async def tell(
    client: httpx.AsyncClient, name: str, target: AlertTargetSettings, alert: Alert, console: str | None, now: datetime
) -> None:
    """Tell a target once. Raises Untold."""
    if target.kind == "alertmanager":
        url, body = f"{target.url.rstrip('/')}/api/v2/alerts", alertmanager_body(alert, console, now)
    else:
        url, body = target.url, webhook_body(name, alert, console)
    try:
        response = await client.post(
            url, content=body, headers=headers(target, alert.key, body, now), timeout=target.timeout_s
        )
    except httpx.HTTPError as error:  # its text may name the address, which may be secret
        raise Untold("unreachable", f"no answer: {type(error).__name__}") from error
    if not response.is_success:
        status = response.status_code
        raise Untold(str(status), f"answered {status}", is_final=status in _FINAL, after_s=_pause_of(response))


def headers(target: AlertTargetSettings, key: str, body: bytes, now: datetime) -> dict[str, str]:
    seconds = int(now.timestamp())
    found = {
        "Content-Type": "application/json",
        "User-Agent": "onward",
        "Idempotency-Key": key,
        "webhook-id": key,
        "webhook-timestamp": str(seconds),
    }
    if target.secret is not None:
        found["webhook-signature"] = signature(target.secret, key, seconds, body)
    if target.token is not None:
        found["Authorization"] = f"Bearer {target.token}"
    return found


def _pause_of(response: httpx.Response) -> float:
    """Return the seconds that the answer asks to wait; dates are ignored."""
    try:
        return min(max(0.0, float(response.headers.get("retry-after", "0"))), _LONGEST_PAUSE_S)
    except ValueError:
        return 0.0
