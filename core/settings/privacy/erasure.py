"""How long what users say is kept."""

from pydantic import Field

from core.section import Section


class RetentionSettings(Section):
    """Ages of one namespace's turns, from their arrival, at which a part of each goes; None: it is kept for ever."""

    keep_text_days: float | None = Field(default=None, ge=0)
    """Words: messages, answers, tool calls, comments, diffs, hints. Tokens say the same, and go with them."""
    keep_tokens_days: float | None = Field(default=None, ge=0)
    """Token ids and log-probabilities, where they go before the words: such turns train no more."""
    keep_rewards_days: float | None = Field(default=None, ge=0)
    """Outcomes and rewards."""

    @property
    def has_ages(self) -> bool:
        return (self.keep_text_days, self.keep_tokens_days, self.keep_rewards_days) != (None, None, None)
