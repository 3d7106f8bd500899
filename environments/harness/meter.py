"""What an episode has used so far, of what it may."""

from dataclasses import dataclass

from environments.harness.harness import Budget, UsedUp
from environments.harness.model import Answer


@dataclass
class Meter:
    """Counts tokens, calls and seconds on the critical path.

    A token counts once: as output, or where a prompt has it for the first time. A context that begins anew (after a
    summary) counts whole. Seconds are those of the requests, which follow one another, and of the groups of calls."""

    budget: Budget
    prompt_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    critical_path_seconds: float = 0.0
    _context_tokens: int = 0

    def answered(self, answer: Answer) -> None:
        self.prompt_tokens += max(0, answer.prompt_tokens - self._context_tokens)
        self.output_tokens += answer.output_tokens
        self.critical_path_seconds += answer.seconds
        self._context_tokens = answer.prompt_tokens + answer.output_tokens

    def executed(self, calls: int, seconds: float) -> None:
        self.calls += calls
        self.critical_path_seconds += seconds

    def begins_anew(self) -> None:
        """Note that the next prompt does not continue the last one."""
        self._context_tokens = 0

    @property
    def tokens_left(self) -> int:
        return self.budget.tokens - self.prompt_tokens - self.output_tokens

    @property
    def calls_left(self) -> int:
        return self.budget.calls - self.calls

    @property
    def seconds_left(self) -> float:
        return self.budget.critical_path_seconds - self.critical_path_seconds

    @property
    def used_up(self) -> UsedUp | None:
        """What is used up, if anything is."""
        if self.tokens_left <= 0:
            return "tokens"
        if self.calls_left <= 0:
            return "calls"
        return "seconds" if self.seconds_left <= 0 else None
