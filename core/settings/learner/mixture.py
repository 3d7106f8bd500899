"""The mixture of an update: how much of it may come from where."""

from typing import Annotated

from pydantic import Field

from core.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class MixtureSettings(Section):
    simulated: Share | None = None
    """The largest share of an update's turns that may be simulated ones (rollouts), while production has turns that
    train: production's always come first. None: as many as production leaves room for."""
    quiet_s: float = Field(default=600.0, ge=0)
    """Once production had no rewarded turn for so long, updates may be of simulated turns alone, whatever their
    share."""
    workloads: dict[str, Share] = Field(default={})
    """The largest share of `learner.batch.turns` that turns of a workload may have in an update, by its name. 0: they
    never train."""
