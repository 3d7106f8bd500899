"""The result of an evaluation in words: what can be said of the candidate, on what ground, and what cannot."""

from learner.off_policy.estimators import OffPolicy
from learner.off_policy.jackknife import JackknifeEstimate

BEYOND = (
    "It does not say where other answers would have led a session, nor what answers earn that were never given here: "
    "a canary does."
)


def told(found: OffPolicy) -> str:
    """Return the sentences. Gains are of reward a turn, over what was earned on these turns."""
    if found.overlap.refused is not None:
        return cannot_say(found.overlap.refused)
    stated, line, snips = (_within(found.gains[name]) for name in ("stated", "line", "snips"))
    worth = f"{found.overlap.turns} turns, which count as {found.overlap.effective:.0f} of the candidate's own"
    if found.bends:
        ground = (
            "The reward bends as answers become likelier under the candidate, so that two estimates have to agree: "
            f"{snips} by {worth}, and {line} if the reward were a straight line."
        )
    else:
        ground = (
            "That takes the reward to rise or fall in a straight line as answers become likelier under the candidate, "
            f"and these turns show no bend. Without that it is {snips}, by {worth}."
        )
    return f"The candidate's gain would have been {stated} a turn. {ground} {BEYOND}"


def cannot_say(why: str) -> str:
    return f"These turns cannot say what the candidate would have earned: {why}."


def _within(gain: JackknifeEstimate) -> str:
    return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
