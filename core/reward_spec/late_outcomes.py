"""Late outcomes that could not correct anything: they come when the reward has reached its upper bound."""

from core.errors import ConfigError
from core.reward_spec.outcome_ages import soonest_s
from core.reward_spec.rules import RewardRules, RewardSpec


def require_that_they_correct(spec: RewardSpec) -> None:
    """Raise ConfigError naming the late outcomes whose every value leaves an accepted answer's reward as it is.

    Such a spec gives what was accepted and is gone a week later the reward of what was kept."""
    mute = sorted({name for rules in spec.variants() for name in _mute(rules)})
    if mute:
        raise ConfigError(
            f"reward spec: outcomes: {', '.join(mute)}: what they add to an accepted answer is clipped away, so that "
            "they cannot lower its reward. Give each a `neutral` (the share that survived: 1), or leave room in `clip`"
        )


def _mute(rules: RewardRules) -> list[str]:
    accepted = [outcome.reach[1] for name, outcome in rules.outcomes.items() if rules.roles.get(name) == "accept"]
    most, highest = max(accepted, default=0.0), rules.clip[1]
    return [
        name
        for name, outcome in rules.outcomes.items()
        if outcome.moves and soonest_s(name, outcome) and most + outcome.reach[0] >= highest
    ]
