"""The regret of users of whom some write what they wanted instead of an answer that they rejected.

    python -m bench demonstrations [--seeds 8] [--steps 150]

A third of those who reject an answer also edit it, and some of them write something that nobody wants. The trial
compares values of `learner.objective.demonstration_weight`; see `trials.py`."""

from dataclasses import replace

import msgspec

from bench.learning.feedback_world import CONTEXTS
from bench.table import report
from bench.words.trials import Trial, compare
from core.events import TextEdit
from learner.sequences.scored import ScoredTurn


def write_it(scored: ScoredTurn, wanted: tuple[int, int]) -> ScoredTurn:
    """Put the text that the user wrote into the reward, as edits of the tokens that it changes."""
    written = [CONTEXTS + choice for choice in wanted]
    changed = [
        TextEdit(start=place, end=place + 1, token_ids=(new,))
        for place, (new, old) in enumerate(zip(written, scored.turn.token_ids, strict=True))
        if new != old
    ]
    return replace(scored, reward=msgspec.structs.replace(scored.reward, edits=tuple(changed)))


TRIAL = Trial("texts", "objective.demonstration_weight", draw=5, say=write_it)

if __name__ == "__main__":
    report("demonstrations", compare(TRIAL, __doc__))
