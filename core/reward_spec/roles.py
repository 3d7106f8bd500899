"""Roles of outcomes: what one says of an answer, whatever its name and its weight are."""

from typing import Final, Literal

Role = Literal[
    "accept",
    "edit",
    "reject",
    "complaint",
    "retry",
    "check",
    "useful",
    "rating",
    "shown",
    "void",
    "words",
    "demonstration",
    "none",
]
"""`accept`: the user took it, or a share of it; `edit`: the share of it that was kept where it was changed first;
`reject`: the user turned it down; `complaint`: the user complained, or took it back; `retry`: another one was asked
for, or the user went back to before it; `check`: a machine tried it; `useful`: somebody found it useful; `rating`: good
above 0, bad below; `shown`: the user saw it, whatever came of that; `void`: a fault that is not the answer's brought it
about, and nothing is learned from it; `words`: text that a better answer would heed; `demonstration`: the text that
the user wanted instead; `none`: it says nothing of that."""

PRAISE: Final = frozenset({"accept", "edit", "check", "useful", "rating"})
"""More of it is better."""
BLAME: Final = frozenset({"reject", "complaint", "retry"})
"""Less of it is better. That it was not said is no praise."""
NUMBERS: Final = frozenset({"edit", "rating"})
"""They are numbers; others may be booleans, too."""
TEXTS: Final = frozenset({"words", "demonstration"})
"""They are texts, and no other outcome is."""

USUAL: Final[dict[str, Role]] = {
    "accepted": "accept",
    "partially_accepted": "accept",
    "edited": "edit",
    "rejected": "reject",
    "follow_up": "complaint",
    "reverted": "complaint",
    "regenerated": "retry",
    "tests_passed": "check",
    "build_passed": "check",
    "answer_useful": "useful",
    "plan_useful": "useful",
    "rating": "rating",
    "comment": "words",
    "demonstration": "demonstration",
}
"""The roles of names that are older than roles, where a spec says none. A newer outcome states its own in the spec."""

CONSENT_WITHDRAWN: Final = "consent_withdrawn"
"""The outcome by which the service itself says that a turn may teach no more, since its user has withdrawn consent. It
is void under every spec, and no spec has an outcome of that name."""
