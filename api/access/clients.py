"""The program that sends a request, from the header `User-Agent`: one of a fixed list, so that metrics stay few."""

from functools import lru_cache

from core.errors import RequestError
from core.events import Protocol
from core.ids import Namespace
from core.telemetry import IGNORED_FIELDS, REFUSED_REQUESTS

_KNOWN = (
    ("onward-client/python", "onward-python"),
    ("onward-client/js", "onward-js"),
    ("onward-vscode", "onward-vscode"),
    ("openai/python", "openai-python"),
    ("asyncopenai/python", "openai-python"),
    ("openai/js", "openai-node"),
    ("anthropic/python", "anthropic-python"),
    ("anthropic/js", "anthropic-node"),
    ("litellm", "litellm"),
    ("aider", "aider"),
    ("agents/python", "openai-agents"),
    ("pydantic-ai", "pydantic-ai"),
    ("langchain", "langchain"),
    ("ai-sdk", "ai-sdk"),
    ("ai/", "ai-sdk"),
    ("opencode", "opencode"),
    ("codex", "codex"),
    ("qwencode", "qwen-code"),
    ("continue", "continue"),
    ("cline", "cline"),
    ("zed", "zed"),
    ("githubcopilotchat", "copilot-chat"),
    ("mozilla", "browser"),
    ("curl", "curl"),
    ("python-httpx", "httpx"),
    ("python-requests", "requests"),
    ("python/", "aiohttp"),
    ("node", "node"),
)
"""Beginnings of the header in lower case, and what the client is called."""


@lru_cache(maxsize=256)
def client_of(user_agent: str | None) -> str:
    said = (user_agent or "").lower()
    return next((name for beginning, name in _KNOWN if said.startswith(beginning)), "other")


def count_ignored(client: str, names: tuple[str, ...]) -> None:
    """Count what a request asked for and did not get."""
    for name in names:
        IGNORED_FIELDS.labels(client, name).inc()


def count_refused(namespace: Namespace | None, user_agent: str | None, protocol: Protocol, error: RequestError) -> None:
    """Count a request that asked for what it cannot have, by the error's own word; None: its caller is not known."""
    REFUSED_REQUESTS.labels(namespace or "", client_of(user_agent), protocol, error.code).inc()
