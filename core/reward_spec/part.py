"""A table of the file."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Entries that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
