"""Several clusters that share one policy through a bucket."""

from typing import Literal

from pydantic import Field

from core.section import Section


class ClusterSettings(Section):
    role: Literal["home", "edge"] | None = None
    """`home`: learns, tells the others its releases, and gathers what they logged. `edge`: serves what home released
    and sends home what it logged; it learns nothing itself. None: there is one cluster. Each needs a name of its own,
    `serving.cluster`."""
    url: str | None = None
    """The directory or URL through which they do so, given like `blobs`, and the same for all. Their `blobs` are the
    same, too."""
    every_s: float = Field(default=1.0, gt=0)
    """How often each looks for news."""
