"""Words: how far the policy follows what users say of its answers."""

from typing import Final

from pydantic import Field, field_validator

from core.section import Section

_PLACE: Final = "{words}"


class WordsSettings(Section):
    """See docs/decisions/0041-words-teach-within-bounds.md."""

    weight: float = Field(default=0.0, ge=0)
    """Weight of what users say (the hints of a reward) beside the reward's number. 0: words do not train."""
    namespaces: tuple[str, ...] | None = None
    """The namespaces whose words train; None: all. Turns without consent to learning never do."""
    wording: str = "\n\nFeedback on an earlier answer: {words}"
    """How the words stand in the request of which the answer is thought over, in place of `{words}`."""
    longest_tokens: int = Field(default=128, ge=1)
    """Tokens of all that was said of an answer, with the wording: what is over, the oldest first, does not train."""
    most_nats: float = Field(default=2.0, gt=0)
    """How much likelier or less likely, in nats, words can make a token in one update: they can favour what the policy
    might have said by itself, and hardly make it say what only they contain."""
    witnesses: int = Field(default=8, ge=2)
    """Other turns of the update that are read with an answer's words, which tells whether heeding them is rewarded."""
    proof: float = Field(default=2.0, ge=0)
    """Standard errors by which heeding a namespace's words must have been rewarded, before they train. 0: no proof
    is asked for, and no other turns are read."""
    candidates: int = Field(default=32, ge=1)
    """Tokens of which an answer's next one is thought over, the likeliest; the others count as one."""
    teacher_decay: float = Field(default=0.95, ge=0, lt=1)
    """The policy that thinks an answer over is the mean of those before it, which forgets by this much an update. 0:
    the newest one, which follows its own words without end. Its weights take as much memory as those that train."""

    @field_validator("wording")
    @classmethod
    def _has_a_place(cls, wording: str) -> str:
        if wording.count(_PLACE) != 1:
            raise ValueError(f"holds {_PLACE} {wording.count(_PLACE)} times instead of once")
        return wording

    def worded(self, words: str) -> str:
        return self.wording.replace(_PLACE, words)
