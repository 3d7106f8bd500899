"""The best result of one style for everything: the share of `write` requests whose users like it, exactly.

It bounds what a model can reach that turned two switches and learned nothing about repositories or functions."""

import itertools
from collections.abc import Iterator
from fractions import Fraction

from simulator.tasks.sampling import REPOS, SUFFIXES, UserTask, identity, names_of, split_of, write_task
from simulator.tasks.taste import STYLES, Style, Taste
from simulator.tasks.templates import TEMPLATES


def met_by_each(taste: Taste) -> dict[Style, Fraction]:
    """Return the share of served requests that each style suits, by the odds with which they are drawn."""
    met = dict.fromkeys(STYLES, Fraction(0))
    for task, odds in served():
        met[taste.style(task)] += odds
    whole = sum(met.values())
    return {style: odds / whole for style, odds in met.items()}


def ceiling(taste: Taste) -> Fraction:
    """Return the share that the best of the styles suits."""
    return max(met_by_each(taste).values())


def served() -> Iterator[tuple[UserTask, Fraction]]:
    """Yield all `write` tasks that users may ask for, each with its odds among all draws."""
    for template, repo in itertools.product(TEMPLATES, REPOS):
        all_names = list(names_of(template))
        choices = list(itertools.product(template.verbs, SUFFIXES, all_names))
        odds = Fraction(1, len(TEMPLATES) * len(REPOS) * len(choices))
        for verb, suffix, names in choices:
            task = write_task(template, repo, verb + suffix, names)
            if split_of(identity(task)) == "served":
                yield task, odds
