"""The judge: a language model that is asked how good answers are."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from core.section import Section
from core.settings.services.address import Address
from core.temperature import Temperature


class JudgeRequestSettings(Section):
    votes: int = Field(default=3, ge=1, le=31)
    """How often it is asked about a turn, each time with another seed. More than half must answer; the median
    counts."""
    temperature: Temperature = 0.7
    """The temperature of its sampling, 0 or 0.01 to 2; at 0 all votes are the same."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a vote, sent as `max_tokens`; None: as many as the endpoint gives."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long a request may take."""
    give_up_s: float = Field(default=120.0, gt=0)
    """How long a turn may take with all its votes and their retries, before it is given up."""
    under_way: int = Field(default=8, ge=1, le=1024)
    """Most requests at once."""

    @model_validator(mode="after")
    def _takes_its_time(self) -> Self:
        if self.give_up_s < self.timeout_s:
            raise ValueError("give_up_s is less than timeout_s: no request could take that long")
        return self


class JudgedTurnSettings(Section):
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of turns that are judged, chosen by a hash of their ids, so that it is always the same ones."""
    purposes: tuple[Literal["turn", "suggestion", "side", "summary"], ...] = Field(default=("turn",), min_length=1)
    """Purposes of the turns that are judged."""
    workloads: tuple[str, ...] = ()
    """Workloads whose turns are judged; none named: all."""
    per_minute: int = Field(default=60, ge=1)
    """Most turns taken up in any minute; turns beyond it are passed over, and counted."""
    max_age_s: float = Field(default=3600.0, gt=0, le=10 * 365 * 86400.0)
    """Age beyond which a turn is passed over: it is from before the judge was started, or the judge is too far
    behind."""
    max_characters: int = Field(default=60_000, ge=1)
    """Longest conversation with its answer; longer ones are passed over, never shortened."""


class JudgeSettings(Section):
    enabled: bool = False
    """Whether turns are judged."""
    base_url: Address | None = Field(default=None, pattern=r"^https?://[^\s/]+")
    """The endpoint, as OpenAI's clients take it: `https://HOST/v1`."""
    model: str | None = Field(default=None, min_length=1)
    """The name of the judging model at the endpoint."""
    api_key: str | None = Field(default=None, repr=False, pattern=r"^[!-~]+$")
    """Its bearer token; better in the environment than in the file."""
    prompt: Path | None = None
    """A file that says what a good answer is; None: the shipped text."""
    outcome: str = Field(default="judgement", min_length=1)
    """The outcome that it reports, which the reward spec must have: a number from 0 to 1."""
    requests: JudgeRequestSettings = JudgeRequestSettings()
    """How it is asked."""
    turns: JudgedTurnSettings = JudgedTurnSettings()
    """The choice of turns about which it is asked."""

    @model_validator(mode="after")
    def _has_somebody_to_ask(self) -> Self:
        if self.enabled and (self.base_url is None or self.model is None):
            raise ValueError("base_url and model are required when enabled is true")
        return self
