"""`GET /`: a page that shows `/v1/status`, `/v1/releases` and `/v1/fleet`. It holds nothing of its own, so it needs no
key; what it asks for does."""

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter, Response


def console_router() -> APIRouter:
    router = APIRouter()
    page = files("api").joinpath("console.html").read_text("utf-8")
    headers = {
        "content-security-policy": _policy_of(page),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }

    @router.get("/", include_in_schema=False)
    async def console() -> Response:
        return Response(page, media_type="text/html", headers=headers)

    return router


def _policy_of(page: str) -> str:
    """Nothing but the page's own script and style, by their hashes, and this service's own answers."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(page, 'script')}",
            f"style-src {_hashes(page, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _hashes(page: str, element: str) -> str:
    inline = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
