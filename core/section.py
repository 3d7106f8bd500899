"""What all sections of the settings have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
