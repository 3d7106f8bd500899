"""The judge of follow-ups: whether a user's next words find fault with the answer before them.

A port with two judges: the pattern of a reward spec, and a linear one, whose weights were learned from labelled
follow-ups. How often each errs is measured: `python -m bench follow_ups`, docs/decisions/0041."""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from core.reward_spec import DerivedSpec
from core.text.patterns import pattern

_WEIGHTS: Final = Path(__file__).with_name("displeasure.json")
_USUAL: Final = DerivedSpec()
_LONGEST: Final = 16  # words, from which on a text counts as long
_STEP: Final = 4
SIGNS: Final = {
    "fails": r"\b(fails?|failing|failed|crash\w*|breaks?|broke|broken|errors?|warning\w*|hangs?|segfaults?|red|leak\w*"
    r"|slow|wrong|incorrect|missing|invalid)\b",
    "denies": r"\b(not|never|no|none|nobody|without)\b|n't\b",
    "names the other": r"\byou('re| are| were|r)?\b",
    "says what the other did": r"\byou \w+(ed|t|ke|d)\b|\byour\b",
    "begins with the thing": r"^\W*(this|that|it|the|there|line)\b",
    "says again": r"\b(still|again|same|already|now)\b",
    "wants another": r"\b(too|instead|rather|back|should|asked|wanted|meant|prefer|other)\b|\w+er,? please",
    "begins a request": r"^\W*(can|could|how|what|which|where|who|is|are|does|do|should|would|please|write|add|make"
    r"|show|run|list|explain|now|next|and|let'?s?|also|in|open|set|move|rename|delete|bump|draft|generate|fix|remember"
    r"|compare|deploy|convert|extract|increase|sort)\b",
    "praises": r"\b(thanks?|great|good|perfect|nice|ok(ay)?|yes|cool|awesome|works|right|lgtm|sense|exactly|finally|wow"
    r"|better)\b",
    "ends as a question": r"\?\s*$",
    "asks why": r"\bwhy (did|are|do|is|a|the|not)\b",
    "speaks of others": r"\b(my|our|users?|production|boss|customer)\b",
}
"""What the linear judge looks for. `pattern`, the spec's default, is one more sign."""


class FollowUpJudge(Protocol):
    def fault(self, words: str) -> str | None:
        """Return why the words find fault with the answer before them; None when they do not. Pure."""


class PatternJudge:
    """It looks for what displeased users write (`derived.displeased`)."""

    def __init__(self, displeased: str) -> None:
        self._pattern = pattern(displeased)

    def fault(self, words: str) -> str | None:
        found = self._pattern.search(words)
        return None if found is None else f"says: {found.strip()}"


class LinearJudge:
    """It adds up what signs of a text speak for."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def fault(self, words: str) -> str | None:
        likelihood = self.likelihood(words)
        return f"finds fault ({likelihood:.0%})" if likelihood > 0.5 else None

    def likelihood(self, words: str) -> float:
        """Return how likely the words find fault, 0 to 1."""
        return 1 / (1 + math.exp(-math.fsum(self._weights.get(each, 0.0) for each in features(words))))


def judge_of(spec: DerivedSpec) -> FollowUpJudge:
    """Return the judge that a reward spec names."""
    return PatternJudge(spec.displeased) if spec.judge == "pattern" else _linear()


def features(words: str) -> set[str]:
    """Return the signs that a text has, and about how long it is."""
    found = {name for name, sign in SIGNS.items() if pattern(sign).is_in(words)}
    if pattern(_USUAL.displeased).is_in(words):
        found.add("pattern")
    length = min(len(words.split()), _LONGEST) // _STEP * _STEP
    return found | {"any", f"{length} words or more"}


@lru_cache(maxsize=1)
def _linear() -> LinearJudge:
    return LinearJudge(json.loads(_WEIGHTS.read_text(encoding="utf-8")))
