"""Errors in Anthropic's shape (https://docs.anthropic.com/en/api/errors)."""

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


def in_anthropics_shape(status: int, said: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an error. `param` and `code`, which are ours, stand beside what Anthropic's clients read."""
    message = said["message"]
    if said["code"] == "context_length_exceeded":  # agents know by Anthropic's words that they are to compact
        asked, most = _after("requested", message), _after("is", message)
        known = asked.isdigit() and most.isdigit()
        message = f"prompt is too long: {asked} tokens > {most} maximum" if known else f"prompt is too long: {message}"
    kind = _TYPES.get(status, "invalid_request_error")
    return {"type": "error", "error": {**said, "type": kind, "message": message}}


def _after(word: str, message: str) -> str:
    """Return the number that follows a word of OpenAI's message."""
    return message.partition(f" {word} ")[2].partition(" ")[0]
