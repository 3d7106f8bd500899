"""The verdict of people and machines on an answer, good or bad, against which a judge is measured."""

from collections.abc import Mapping

from core.reward_spec import Role


def word_of(role: Role | None, value: float) -> bool | None:
    """Return whether a value in that role says that the answer is good; None when it says neither."""
    match role:
        case "accept" | "edit" | "check" | "useful":
            return value >= 0.5  # of a share, and of true or false
        case "reject" | "complaint" | "retry":
            return False if value > 0 else None  # no complaint is no praise
        case "rating" if value:
            return value > 0
    return None


def verdict(told: Mapping[str, float], roles: Mapping[str, Role]) -> bool | None:
    """Return the verdict of all outcomes, by name: bad if any says bad; None if none says either."""
    words = {word_of(roles.get(name), value) for name, value in told.items()} - {None}
    return all(words) if words else None
