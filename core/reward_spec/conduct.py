"""The cost of a turn by itself, without any feedback: its effort, its form, and its claims."""

import math
from typing import Annotated, Final

from pydantic import Field, ValidationInfo, field_validator

from core.errors import ConfigError
from core.reward_spec.part import LARGEST, Amount, Part
from core.text.patterns import pattern as compiled

_LEAST_DIVISOR: Final = 1e-13

Penalty = Annotated[float, Field(ge=-LARGEST, le=0)]


class EffortSpec(Part):
    """An effort penalty, subtracted with its coefficient (Composer 2, arXiv 2603.24477).

        C(x) = ((1 + kx)^(1 - q) - 1) / (k (1 - q))

    over a weighted sum x of tokens, calls, turns and seconds along the session. It is concave for q > 0: the first
    steps of a session cost the most. Its limits are ln(1 + kx) / k at q = 1 and x at k = 0. A turn pays C up to and
    including itself less C up to its parent, so the turns on a path together pay C of the whole path."""

    coefficient: Amount = 0.0
    """0: effort costs nothing."""
    k: Amount = 0.001
    """How soon more effort costs less; 0, or at least 1e-13: C(x) divides by it."""
    q: float = Field(default=0.5, ge=0, le=10)
    """How much less; 1, or at least 1e-13 away from it: C(x) divides by 1 - q."""
    thinking: Amount = 1.0
    """Weight of a thinking token, where a turn's segments tell them from the answer's: those of the chat API do not,
    and count what a model thinks aloud as `answer`."""
    tool_call: Amount = 1.0
    """Weight of a token of a tool call."""
    tool_output: Amount = 0.25
    """Weight of a token that tools answered; the turn that reads it pays."""
    answer: Amount = 1.0
    """Weight of a token of the final message."""
    call: Amount = 20.0
    """Weight of a turn's first tool call."""
    parallel_call: Amount = 5.0
    """Weight of each further call of the same turn: they run while the user waits for the first."""
    turn: Amount = 0.0
    """Weight of the turn itself."""
    second: Amount = 0.0
    """Weight of a second on the critical path of tool calls, where the client tells when they ran: while several run,
    a second counts once. The turn that reads their results pays."""

    @field_validator("k", "q")
    @classmethod
    def _divides(cls, value: float, info: ValidationInfo) -> float:
        distance = value if info.field_name == "k" else abs(1 - value)
        if 0 < distance < _LEAST_DIVISOR:
            raise ValueError(f"{value:g} divides by nearly zero")
        return value

    def cost(self, effort: float) -> float:
        if self.k == 0:
            return effort
        growth = math.log1p(self.k * effort)
        if self.q == 1:
            return growth / self.k
        return math.expm1((1 - self.q) * growth) / (self.k * (1 - self.q))


class PenaltySpec(Part):
    """The costs of bad form, charged once each per turn; 0: none. Suggestions are judged by their outcomes alone."""

    malformed_call: Penalty = 0.0
    """A tool call that is incomplete, names no tool that was offered, or has arguments that the tool does not
    accept."""
    cut_off: Penalty = 0.0
    """The limit of tokens ended the answer."""
    empty_answer: Penalty = 0.0
    """Neither words nor a call."""
    repeated_answer: Penalty = 0.0
    """The words of one of the conversation's last 100 answers once more, without a call: a needless reply."""
    unbacked_claim: Penalty = 0.0
    """It says what one of `claims` describes, and the conversation has no evidence for it."""


class ClaimSpec(Part):
    """A claim and its evidence. Patterns are regular expressions, as RE2 has them, searched in any case of letters."""

    says: str
    """The pattern in an answer's words that makes the claim."""
    needs: str
    """The pattern that a tool call, as `NAME ARGUMENTS`, must match to be evidence; a run (`derived.tests`, `builds`,
    `lints`) whose result says that it failed is none."""
    voided_by: str | None = None
    """A later call that matches makes earlier evidence void (an edit after the tests ran)."""

    @field_validator("says", "needs", "voided_by")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            compiled(pattern or "")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return pattern
