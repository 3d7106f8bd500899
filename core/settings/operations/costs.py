"""What is paid for what organisations use."""

from pydantic import Field

from core.section import Section


class CostSettings(Section):
    """Prices, in one currency. What was used is counted in any case."""

    currency: str | None = Field(default=None, pattern=r"^[A-Z]{3}$")
    """`EUR`, for those who read; None: `GET /v1/costs` tells what was used, and no cost."""
    prompt: float = Field(default=0.0, ge=0)
    """A million tokens of prompts, cached ones too."""
    output: float = Field(default=0.0, ge=0)
    """A million tokens that were sampled."""
    answer_hour: float = Field(default=0.0, ge=0)
    """An hour that a request is under way: an engine's hour by the number of requests that it usually has at once."""
    learner_hour: float = Field(default=0.0, ge=0)
    """An hour that the learner works for a policy; waiting for rewards is free."""
    gigabyte_month: float = Field(default=0.0, ge=0)
    """10⁹ bytes of turns in the log, for each month up to whose end they came."""
