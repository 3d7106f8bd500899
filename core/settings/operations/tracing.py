"""Traces, sent to a collector of OpenTelemetry."""

from pydantic import Field

from core.section import Section


class TracingSettings(Section):
    url: str | None = Field(default=None, pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")
    """A collector that takes OTLP over HTTP, as in `http://collector:4318`; spans go to its `/v1/traces`. None: nothing
    is traced."""
    token: str | None = Field(default=None, repr=False, pattern=r"^[!-~]+$")
    """A bearer token that is sent along; None: none."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of turns that are traced, chosen by a digest of their ids, so that all processes choose the same ones."""
    timeout_s: float = Field(default=5.0, gt=0)
    """How long an export may take with all its retries; spans that could not be sent by then are dropped."""
    queue: int = Field(default=8192, ge=512)
    """Most spans of one process that wait for the collector; beyond it the oldest are dropped."""
