"""The base of all sections of the settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
