"""The coverage of off-policy intervals: seeded trials of candidates whose true value is known, at several distances.

    python -m bench off_policy_trials [--trials 2000] [--other-trials 600]

Users come with contexts; a policy answers in tokens, each a softmax choice; the reward is a user's yes or no,
likelier the better the tokens, and users differ. Predictions are the product's, with contexts as strata. What is
`stated` is what `onward propose` goes by. Its width is compared with that of self-normalised weights in the same
trials, and at distance 1 with what was committed of such trials before there was a line.

Candidates `drift` at random, as far as the distance says. Others, at distance 1, were taught: they `learned` what
users like, or its opposite (`harmed`); or came to like a token that spoils the whole answer (`broken`), or went so far
in a good direction that it is no longer good (`overdone`): then the reward is no straight line in the log-ratio."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
from rich.progress import track

from bench.table import Row, report
from learner.off_policy.estimators import off_policy
from learner.off_policy.overlap import LoggedTurns
from learner.off_policy.predictions import predictions

TRIALS, OTHER_TRIALS = 2000, 600
USERS, USER_TURNS = 400, 5  # on average
CONTEXTS, TOKENS, CHOICES = 12, 6, 8
QUALITY, USER_SPREAD = 0.3, 0.15  # how far tokens, and users, move the probability of a yes from 0.5
YES, NO = 1.0, -0.5
DISTANCES = (0.2, 0.4, 0.6, 0.8, 1.0)  # logits' standard deviation between candidate and logged policy
TOO_FAR = 3.0
LEAST, MOST = 0.93, 0.97  # share of intervals that must contain the truth
BEFORE, NARROWER = 0.299, 0.5  # median width at distance 1 as committed before, and the share of it that is allowed
MARGIN = 0.05  # as `--reward-margin`
TAUGHT = 0.7  # of the distance's square, half lies along the quality
SPOILED, WHOLE, TILT = 0.25, 0.65, 1.5  # chances of a yes, and by how many logits the spoiling token is rarer
DRAWN = 10_000  # answers by which a value is known that has no formula

Array = np.ndarray
Kind = Literal["drift", "learned", "harmed", "broken", "overdone"]
OTHERS: tuple[Kind, ...] = ("learned", "harmed", "broken", "overdone")


@dataclass(frozen=True)
class World:
    logged: Array  # [context, token, choice]: log-probabilities
    candidate: Array
    shares: Array  # of contexts
    accepted: Callable[[Array, Array], Array]  # (contexts [N], choices [N, token]) to the probability of a yes [N]

    def value(self, policy: Array, rng: np.random.Generator) -> float:
        context = rng.choice(CONTEXTS, DRAWN, p=self.shares)
        return float(np.mean(NO + (YES - NO) * self.accepted(context, answers(policy, context, rng))))


@dataclass(frozen=True)
class Straight(World):
    """A world whose rewards are the mean of what tokens are worth."""

    quality: Array  # [context, token, choice], in [-1, 1]

    def value(self, policy: Array, rng: np.random.Generator) -> float:
        accepted = 0.5 + QUALITY * (np.exp(policy) * self.quality).sum(2).mean(1)
        return float(self.shares @ (NO + (YES - NO) * accepted))


@dataclass
class Ended:
    """The results of the trials that were not refused, by estimator."""

    covered: dict[str, list[bool]] = field(default_factory=dict)
    gain_covered: dict[str, list[bool]] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)
    gain_widths: dict[str, list[float]] = field(default_factory=dict)
    passed: list[bool] = field(default_factory=list)
    wrong: list[bool] = field(default_factory=list)  # passed although it earns less, or refused although it earns more
    bent: list[bool] = field(default_factory=list)
    effective: list[float] = field(default_factory=list)
    refused: int = 0


def log_softmax(logits: Array) -> Array:
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def means(quality: Array, context: Array, choices: Array) -> Array:
    return np.asarray(quality[context[:, None], np.arange(TOKENS), choices].mean(1))


def straight(quality: Array, context: Array, choices: Array) -> Array:
    return np.asarray(0.5 + QUALITY * means(quality, context, choices))


def spoiled(spoiling: Array, quality: Array, context: Array, choices: Array) -> Array:
    is_spoiled = (choices == spoiling[context]).any(1)
    return np.where(is_spoiled, SPOILED, WHOLE) + QUALITY / 3 * means(quality, context, choices)


def too_much(quality: Array, context: Array, choices: Array) -> Array:
    """Let it rise at first, and fall from 0.6 standard deviations of a uniform choice's quality on."""
    score = means(quality, context, choices) * np.sqrt(3 * TOKENS)
    return np.clip(0.55 + 0.12 * score - 0.1 * score**2, 0.15, 0.85)


def make_world(rng: np.random.Generator, distance: float, kind: Kind = "drift") -> World:
    shape = (CONTEXTS, TOKENS, CHOICES)
    logits, moved = rng.normal(0, 1, shape), rng.normal(0, 1, shape)
    quality, shares = rng.uniform(-1, 1, shape), rng.dirichlet(np.full(CONTEXTS, 2.0))
    if kind == "broken":
        spoiling = rng.integers(0, CHOICES, shape[:2])
        is_spoiling = np.arange(CHOICES) == spoiling[..., None]
        logits, moved = logits - TILT * is_spoiling, 0.8 * moved + TILT * is_spoiling
        policies = log_softmax(logits), log_softmax(logits + distance * moved)
        return World(*policies, shares, partial(spoiled, spoiling, quality))
    if kind != "drift":
        taught = quality * np.sqrt(3) * (-1 if kind == "harmed" else 1)
        moved = TAUGHT * taught + np.sqrt(1 - TAUGHT**2) * moved
    policies = log_softmax(logits), log_softmax(logits + distance * moved)
    if kind == "overdone":
        return World(*policies, shares, partial(too_much, quality))
    return Straight(*policies, shares, partial(straight, quality), quality)


def answers(policy: Array, context: Array, rng: np.random.Generator) -> Array:
    """Return the choices [N, token]."""
    drawn = rng.random((len(context), TOKENS, 1)) > np.exp(policy[context]).cumsum(2)[:, :, :-1]
    return np.asarray(drawn.sum(2))


def speak(world: World, policy: Array, users: int, rng: np.random.Generator) -> LoggedTurns:
    """Let the policy answer users, and return the turns with their rewards and the candidate's probabilities."""
    user = np.repeat(np.arange(users), rng.geometric(1 / USER_TURNS, users))
    context = rng.choice(CONTEXTS, len(user), p=world.shares)
    choices = answers(policy, context, rng)
    likes = rng.uniform(-USER_SPREAD, USER_SPREAD, users)[user]
    reward = np.where(rng.random(len(user)) < world.accepted(context, choices) + likes, YES, NO)
    places = (context[:, None], np.arange(TOKENS), choices)
    ratios = (world.candidate[places] - policy[places]).sum(1)
    return LoggedTurns.of(ratios, reward, user, predictions(reward, context, user))


def trial(world: World, rng: np.random.Generator, ended: Ended) -> None:
    found = off_policy(speak(world, world.logged, USERS, rng))
    ended.effective.append(found.overlap.effective)
    if found.overlap.refused is not None:
        ended.refused += 1
        return
    truth = world.value(world.candidate, rng)
    gain = truth - world.value(world.logged, rng)
    for name, value in found.values.items():
        change = found.gains[name]
        ended.covered.setdefault(name, []).append(value.low <= truth <= value.high)
        ended.gain_covered.setdefault(name, []).append(change.low <= gain <= change.high)
        ended.widths.setdefault(name, []).append(value.width)
        ended.gain_widths.setdefault(name, []).append(change.width)
    ended.bent.append(found.bends)
    low, high = found.gains["stated"].low, found.gains["stated"].high
    ended.passed.append(low > -MARGIN and high >= 0)
    ended.wrong.append((ended.passed[-1] and gain < -MARGIN) or (high < 0 < gain))


def run(distance: float, trials: int, kind: Kind = "drift") -> Ended:
    ended = Ended()
    seed = (2, ("drift", *OTHERS).index(kind), int(1000 * distance))
    for number in track(range(trials), description=f"{kind}, distance {distance:g}"):
        rng = np.random.default_rng((*seed, number))
        trial(make_world(rng, distance, kind), rng, ended)
    return ended


def rows(at: str, ended: Ended) -> Iterator[Row]:
    yield Row(f"{at}: effective sample size, median", float(np.median(ended.effective)), "turns")
    yield Row(f"{at}: cannot say", float(ended.refused), f"of {len(ended.effective)} trials")
    if not ended.covered:
        return
    stated = f"of {len(ended.bent)} trials"
    yield Row(f"{at}: a bend shows", float(np.mean(ended.bent)), stated)
    for name in ended.covered:
        for what, covered in (("value", ended.covered[name]), ("gain", ended.gain_covered[name])):
            share, said = float(np.mean(covered)), f"{at}: {name}, intervals with the true {what} in them"
            if name == "stated":
                goal, held = f"{LEAST:g} to {MOST:g}", LEAST <= share <= MOST
                yield Row(said, share, stated, goal, share, LEAST if share < MOST else MOST, held)
            else:
                yield Row(said, share, stated)
        for what, widths in (("value", ended.widths[name]), ("gain", ended.gain_widths[name])):
            yield Row(f"{at}: {name}, median width of the {what}'s", float(np.median(widths)), "reward")
    yield Row(f"{at}: passes with a margin of {MARGIN:g}", float(np.mean(ended.passed)), stated)
    yield Row(f"{at}: passes what earns less, or refuses what earns more", float(np.mean(ended.wrong)), stated)


def narrower(at: str, ended: Ended) -> Iterator[Row]:
    """Compare the widths of what decides with the same trials' without a line, and with those before."""
    for what, widths in (("value", ended.widths), ("gain", ended.gain_widths)):
        one, other = (float(np.median(widths[name])) for name in ("stated", "snips"))
        said = f"{at}: stated, median width of the {what}'s"
        yield Row.at_most(said, one, "reward", "snips, the same trials", one / other, NARROWER)
    width = float(np.median(ended.widths["stated"]))
    said = f"{at}: stated, median width of the value's"
    yield Row.at_most(said, width, "reward", "dr, clipped and snips before", width / BEFORE, NARROWER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--other-trials", type=int, default=OTHER_TRIALS)
    wanted = parser.parse_args()
    made: list[Row] = []
    for distance in (*DISTANCES, TOO_FAR):
        at, ended = f"distance {distance:g}", run(distance, wanted.trials)
        made += [*rows(at, ended), *(narrower(at, ended) if distance == 1 else ())]
    for kind in OTHERS:
        made += rows(f"{kind}, distance 1", run(1.0, wanted.other_trials, kind))
    report("off_policy_trials", made)


if __name__ == "__main__":
    main()
