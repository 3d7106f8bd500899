"""Errors in Anthropic's shape (https://docs.anthropic.com/en/api/errors)."""

import re
from typing import Any

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_LENGTHS = re.compile(r"maximum context length is (\d+) tokens\. However, you requested (\d+)")


def in_anthropics_shape(status: int, said: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an error. `param` and `code`, which are ours, stand beside what Anthropic's clients read."""
    message = said["message"]
    if said["code"] == "context_length_exceeded" and (lengths := _LENGTHS.search(message)) is not None:
        message = f"prompt is too long: {lengths[2]} tokens > {lengths[1]} maximum"  # by which agents know to compact
    kind = _TYPES.get(status, "invalid_request_error")
    return {"type": "error", "error": {**said, "type": kind, "message": message}}
