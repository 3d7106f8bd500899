"""The coverage of off-policy intervals: seeded trials of candidates whose true value is known, at several distances.

    python -m bench off_policy_trials [--trials 3000]

Users come with contexts; a policy answers in tokens, each a softmax choice; the reward is a user's yes or no,
likelier the better the tokens, and users differ. The width is compared with that of an on-policy run of the
candidate with as many users as the logged turns are worth, by the same arithmetic. No interval is stated in trials
that are refused; the farthest candidate is there to be refused. Predictions are the product's, with contexts as
strata."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from rich.progress import track

from bench.table import Row, report
from learner.off_policy.estimators import off_policy
from learner.off_policy.jackknife import Estimate, estimate
from learner.off_policy.overlap import LoggedTurns, kish
from learner.off_policy.predictions import predictions

TRIALS = 3000
USERS, USER_TURNS = 400, 5  # on average
CONTEXTS, TOKENS, CHOICES = 12, 6, 8
QUALITY, USER_SPREAD = 0.3, 0.15  # how far tokens, and users, move the probability of a yes from 0.5
YES, NO = 1.0, -0.5
DISTANCES = (0.2, 0.4, 0.6, 0.8, 1.0)  # logits' standard deviation between candidate and logged policy
TOO_FAR = 3.0
LEAST, MOST = 0.90, 0.99  # share of intervals that must contain the truth
WIDEST = 2.0  # of the on-policy interval

Array = np.ndarray


@dataclass(frozen=True)
class World:
    logged: Array  # [context, token, choice]: log-probabilities
    candidate: Array
    quality: Array  # [context, token, choice], in [-1, 1]
    shares: Array  # of contexts

    def accepted(self, policy: Array) -> Array:
        """Return the probability of a yes over users, [context]."""
        return 0.5 + QUALITY * (np.exp(policy) * self.quality).sum(2).mean(1)

    def value(self, policy: Array) -> float:
        return float(self.shares @ (NO + (YES - NO) * self.accepted(policy)))


@dataclass
class Ended:
    """The results of the trials that were not refused, by estimator."""

    covered: dict[str, list[bool]] = field(default_factory=dict)
    gain_covered: dict[str, list[bool]] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)
    on_policy_widths: list[float] = field(default_factory=list)
    on_policy_covered: list[bool] = field(default_factory=list)
    effective: list[float] = field(default_factory=list)
    refused: int = 0


def log_softmax(logits: Array) -> Array:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def make_world(rng: np.random.Generator, distance: float) -> World:
    shape = (CONTEXTS, TOKENS, CHOICES)
    logits = rng.normal(0, 1, shape)
    return World(
        logged=log_softmax(logits),
        candidate=log_softmax(logits + rng.normal(0, distance, shape)),
        quality=rng.uniform(-1, 1, shape),
        shares=rng.dirichlet(np.full(CONTEXTS, 2.0)),
    )


def speak(world: World, policy: Array, users: int, rng: np.random.Generator) -> LoggedTurns:
    """Let the policy answer users, and return the turns with their rewards and the candidate's probabilities."""
    user = np.repeat(np.arange(users), rng.geometric(1 / USER_TURNS, users))
    context = rng.choice(CONTEXTS, len(user), p=world.shares)
    drawn = rng.random((len(user), TOKENS, 1)) > np.exp(policy[context]).cumsum(2)[:, :, :-1]
    places = (context[:, None], np.arange(TOKENS), drawn.sum(2))
    likes = rng.uniform(-USER_SPREAD, USER_SPREAD, users)[user]
    yes = rng.random(len(user)) < 0.5 + QUALITY * world.quality[places].mean(1) + likes
    reward = np.where(yes, YES, NO)
    ratios = (world.candidate[places] - policy[places]).sum(1)
    return LoggedTurns.of(ratios, reward, user, predictions(reward, context, user))


def trial(world: World, rng: np.random.Generator, ended: Ended) -> None:
    found = off_policy(speak(world, world.logged, USERS, rng), reward_range=(NO, YES))
    ended.effective.append(found.overlap.effective)
    if found.overlap.refused is not None:
        ended.refused += 1
        return
    truth, gain = world.value(world.candidate), world.value(world.candidate) - world.value(world.logged)
    for name, value in found.values.items():
        ended.covered.setdefault(name, []).append(value.low <= truth <= value.high)
        ended.widths.setdefault(name, []).append(value.width)
        change = found.gains[name]
        ended.gain_covered.setdefault(name, []).append(change.low <= gain <= change.high)
    users = max(2, round(USERS * found.overlap.effective / found.overlap.turns))
    fresh = on_policy(speak(world, world.candidate, users, rng))
    ended.on_policy_widths.append(fresh.width)
    ended.on_policy_covered.append(fresh.low <= truth <= fresh.high)


def on_policy(turns: LoggedTurns) -> Estimate:
    """Estimate by plain Monte Carlo from turns that the candidate answered itself."""
    sums = turns.sums(turns=np.ones_like(turns.reward_N), reward=turns.reward_N)
    return estimate(sums, lambda s: s["reward"] / s["turns"], kish(sums["turns"]) - 1, 0.95)


def run(distance: float, trials: int) -> Ended:
    ended = Ended()
    for number in track(range(trials), description=f"distance {distance:g}"):
        rng = np.random.default_rng((1, int(1000 * distance), number))
        trial(make_world(rng, distance), rng, ended)
    return ended


def rows(distance: float, ended: Ended) -> Iterator[Row]:
    at = f"distance {distance:g}"
    yield Row(f"{at}: effective sample size, median", float(np.median(ended.effective)), "turns")
    yield Row(f"{at}: refused", float(ended.refused), f"of {len(ended.effective)} trials")
    if not ended.covered:
        return
    on_policy = float(np.median(ended.on_policy_widths))
    yield Row(f"{at}: on-policy intervals with the truth in them", float(np.mean(ended.on_policy_covered)), "share")
    for name, widths in ended.widths.items():
        for what, covered in (("value", ended.covered[name]), ("gain", ended.gain_covered[name])):
            share, said = float(np.mean(covered)), f"{at}: {name}, intervals with the true {what} in them"
            goal, held = f"{LEAST:g} to {MOST:g}", LEAST <= share <= MOST
            yield Row(said, share, f"of {len(covered)} trials", goal, share, LEAST, held)
        width = float(np.median(widths))
        yield Row.at_most(f"{at}: {name}, median width", width, "reward", "on policy", width / on_policy, WIDEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    report("off_policy_trials", [row for at in (*DISTANCES, TOO_FAR) for row in rows(at, run(at, trials))])


if __name__ == "__main__":
    main()
