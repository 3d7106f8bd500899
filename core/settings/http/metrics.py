"""The metrics endpoint of a stage that runs alone."""

from pydantic import Field

from core.section import Section


class MetricsSettings(Section):
    host: str = "127.0.0.1"
    """Address of `/metrics`, `/healthz` and `/readyz` of a stage that runs as a process of its own."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """The port; processes that `onward run` starts get this one and those after it. 0 asks the system for a free one;
    None: not served. The API serves its metrics on its own port."""
