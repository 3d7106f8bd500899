"""What organisations use: counted by the month, the namespace and the policy that answered or learned."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, NamedTuple

from core.events import Completion, PolicyVersion
from core.ids import BASE, Namespace, PolicyName
from core.operations.quotas import month_of

LEARNER: Final = Namespace("")
"""In the place of a namespace: what a policy's learner used, which learns from all of its namespaces at once."""
SECONDS: Final = "seconds_"
"""The prefix of a version's figures for how the learner spent its time since the version before."""
_WAITED: Final = f"{SECONDS}waiting"
_SMALLEST: Final = Decimal("0.000001")


class Payer(NamedTuple):
    month: str  # 2026-11, of UTC
    namespace: Namespace
    policy: PolicyName


class Used(NamedTuple):
    """Counts of one month, as whole numbers: their sums are exact in any order."""

    turns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    answer_ms: int = 0  # that requests were under way: two at once count twice
    logged_bytes: int = 0  # of turns, as the log has them
    learner_ms: int = 0  # without waiting

    def plus(self, other: "Used") -> "Used":
        return Used(*map(sum, zip(self, other, strict=True)))


class Prices(NamedTuple):
    """What one of each costs, in one currency."""

    prompt: Decimal  # a million tokens
    output: Decimal
    answer_hour: Decimal
    learner_hour: Decimal
    gigabyte_month: Decimal

    def of(self, used: Used, held_bytes: int) -> dict[str, Decimal]:
        """Return the cost of what was used, and of the bytes held, each rounded to a millionth, as an invoice does."""
        parts = {
            "prompt": self.prompt * used.prompt_tokens / 10**6,
            "output": self.output * used.output_tokens / 10**6,
            "answers": self.answer_hour * used.answer_ms / 3_600_000,
            "learner": self.learner_hour * used.learner_ms / 3_600_000,
            "disk": self.gigabyte_month * held_bytes / 10**9,
        }
        return {name: cost.quantize(_SMALLEST) for name, cost in parts.items()}


def used_by(turns: Iterable[tuple[Completion, int]]) -> dict[Payer, Used]:
    """Return what turns used, given each with its bytes in the log."""
    sums: dict[Payer, Used] = {}
    for turn, size in turns:
        spoke = turn.policy_versions[0].version.policy if turn.policy_versions else BASE
        payer = Payer(month_of(turn.received_at), turn.namespace, spoke)
        took_ms = round(turn.latency_ms) if math.isfinite(turn.latency_ms) else 0
        used = Used(1, turn.num_prompt_tokens, turn.num_output_tokens, took_ms, size)
        sums[payer] = sums.get(payer, Used()).plus(used)
    return sums


def used_to_make(policy: PolicyVersion) -> dict[Payer, Used]:
    """Return what the learner used for a version."""
    worked_s = sum(s for name, s in policy.metrics.items() if name.startswith(SECONDS) and name != _WAITED)
    payer = Payer(month_of(policy.created_at), LEARNER, policy.version.policy)
    return {payer: Used(learner_ms=round(worked_s * 1000))}


def is_month(text: str) -> bool:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).strftime("%Y-%m") == text
    except ValueError:
        return False
