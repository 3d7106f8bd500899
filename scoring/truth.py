"""What people and machines say of an answer, as one word: good or bad. What a judge is held against."""

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
    """Return whether all that was said, by name, says good. One bad word makes it bad; None: nothing says either."""
    words = {word_of(roles.get(name), value) for name, value in told.items()} - {None}
    return all(words) if words else None
