"""Demonstrations: what users put in the place of an answer."""

from pydantic import Field

from core.section import Section


class DemonstrationSettings(Section):
    weight: float = Field(default=1.0, ge=0)
    """How much each token counts that a user put in the place of the answer's, and the one after them: as much as a
    sampled one with this advantage. Of a text that is longer than the whole answer they count as many together as the
    answer has. 0: edits teach no texts."""
    max_age_s: float = Field(default=86400.0, gt=0)
    """Age of the edit, counted from the turn, past which its text does not train. One that trained is taken back for 90
    days."""
