"""A table of the file, and what is written in it."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

LARGEST: Final = 1e12
"""The largest number that a spec may have: no sum, product or square of a few such numbers overflows a float."""
_LONGEST_S: Final = 3650 * 86400.0  # from any date of ours, such a one can still be written

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S)]


class Part(BaseModel):
    """Entries that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
