"""What an operator does about an alarm, by its monitor: a sentence, and where the documentation has more."""

from collections.abc import Mapping
from typing import Final

ADVICE: Final[Mapping[str, str]] = {
    "invalid_calls": "See who profits from a session that ends early; give malformed_call a penalty.",
    "questions": "If a question costs nothing, give each turn an effort, and turns without an outcome a default.",
    "no_edits": "See what is accepted although nothing was edited; give each turn an effort.",
    "silence": "Of suggestions, lower the show threshold; else give empty answers a penalty.",
    "refusals": "Read some of the turns, and roll back if the requests were harmless.",
    "length": "Give each token an effort in the rewards.",
    "repetition": "Give repetition a penalty, or let the learner stay closer to the anchor.",
    "entropy_blowup": "Roll back, and lower the learning rate.",
    "dropped": "See which turns get no reward, and why the reward spec leaves them out.",
    "reported_against_verified": "Give verified outcomes more weight than reported ones.",
    "length_bias": "See who rates; give verified outcomes more weight, and each token an effort.",
    "default_pays": "Give silence less in the rewards than a verdict gives on average.",
    "judge_against_outcome": "The model pleases the judge: take another judge, or none.",
    "simulated_against_production": "See what tells the model that it is in a simulation.",
    "simulation_shows": "Make the simulation like production: the figures name what gives it away.",
    "entropy_collapse": "Let the learner stay closer to the anchor, or lower the learning rate.",
    "brevity": "Read some of the turns.",
    "effort": "Give each call an effort in the rewards.",
    "worse_than_best": "Roll back to best_version, if nothing else has changed.",
    "coverage": "See whether a plugin has stopped reporting: then defaults teach in the place of users.",
    "component_share": "See who reports this component, and what its weight is.",
    "reward_mass": "See what this user does; limit users, or the key that they come with.",
    "feedback_rate": "See what this user does; limit users, or the key that they come with.",
    "non_finite_loss": "Look at the skipped batch in learner/skipped, then acknowledge; the weights are as they were.",
    "stage_down": "Read why under Health, and the traceback in the log; it closes once the stage is well.",
}
"""Each monitor's, and those of the alarms that others open."""
_PAGE: Final = "docs/monitors/"


def page_of(monitor: str) -> str:
    """Return where the documentation says what an alarm means and what to do, below the service's own address.

    Of a monitor that is no more it is the page as a whole."""
    return f"{_PAGE}#{monitor}" if monitor in ADVICE else _PAGE
