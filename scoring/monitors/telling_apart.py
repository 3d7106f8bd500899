"""A small classifier that tells simulated sessions from others by their form, and the features that give them away.

It is a ridge logistic regression, fitted by gradient descent on the features that differ most. Its quality is measured
on held-out sessions as the area under the curve (AUC), the chance that it ranks two sessions of different sides
correctly. A fold holds all sessions of a user, since one session of a user resembles another.

Legend: N sessions, F features."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

FOLDS = 5
_FEATURES = 48
_RIDGE = 0.02
_STEPS, _RATE = 60, 1.0
_TOLD = 3  # features that are named
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SessionForm:
    """One session's form. `unit`: the user, or the session where there is none."""

    unit: str
    form: frozenset[str]
    is_simulated: bool


@dataclass(frozen=True)
class Telling:
    """How well sides are told apart. `error` is of the AUC, by the numbers of users (Hanley & McNeil 1982).

    `given_away_by`: by feature, its share of the simulated sessions less that of the others; the tellingest first."""

    auc: float
    error: float
    given_away_by: Mapping[str, float]


def tell_apart(sessions: Sequence[SessionForm]) -> Telling | None:
    """Return how well the sides are told apart; None when a fold lacks a side."""
    folds_N = np.array([crc32(session.unit.encode()) % FOLDS for session in sessions])
    sides_N = np.array([float(session.is_simulated) for session in sessions])
    names = sorted({feature for session in sessions for feature in session.form})
    column = {name: place for place, name in enumerate(names)}
    has_NF = np.zeros((len(sessions), len(names)))
    for row, session in enumerate(sessions):
        has_NF[row, [column[name] for name in session.form]] = 1.0
    scores_N = np.zeros(len(sessions))
    for fold in range(FOLDS):
        held_N = folds_N == fold
        if not held_N.any():
            continue
        if len(set(sides_N[~held_N].tolist())) < 2:
            return None
        chosen_F, weights_F, bias = _fit(has_NF[~held_N], sides_N[~held_N])
        scores_N[held_N] = has_NF[held_N][:, chosen_F] @ weights_F + bias
    auc = _auc(scores_N[sides_N == 1], scores_N[sides_N == 0])
    units = [_users(sessions, is_simulated=side) for side in (True, False)]
    return Telling(auc, _error(auc, *units), _given_away(has_NF, sides_N, names))


def _fit(has_NF: Floats, sides_N: Floats) -> tuple[NDArray[np.int64], Floats, float]:
    """Return the chosen features, their weights and the bias; each side weighs as much, however many its sessions."""
    apart_F = np.abs(has_NF[sides_N == 1].mean(0) - has_NF[sides_N == 0].mean(0))
    chosen_F = np.argsort(-apart_F, kind="stable")[:_FEATURES]
    given_NF = has_NF[:, chosen_F]
    share = sides_N.mean()
    each_N = np.where(sides_N == 1, 0.5 / share, 0.5 / (1 - share)) / len(sides_N)
    weights_F, bias = np.zeros(given_NF.shape[1]), 0.0
    rate = _RATE / max(1.0, float(given_NF.sum(1).mean()) / 4)
    for _ in range(_STEPS):
        missed_N = each_N * (1 / (1 + np.exp(-(given_NF @ weights_F + bias))) - sides_N)
        weights_F -= rate * (given_NF.T @ missed_N + _RIDGE * weights_F)
        bias -= rate * float(missed_N.sum())
    return chosen_F, weights_F, bias


def _auc(ours: Floats, theirs: Floats) -> float:
    """Return the share of pairs in which ours has the higher score; ties are half a pair."""
    higher = (ours[:, None] > theirs[None, :]).mean()
    return float(higher + (ours[:, None] == theirs[None, :]).mean() / 2)


def _error(auc: float, ours: int, theirs: int) -> float:
    """Return the standard error, with half a pair added to each side of the truth: an AUC of 1 is not certain."""
    auc = (auc * ours * theirs + 0.5) / (ours * theirs + 1)
    one, both = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (ours - 1) * (one - auc**2) + (theirs - 1) * (both - auc**2)
    return sqrt(spread / (ours * theirs))


def _users(sessions: Sequence[SessionForm], *, is_simulated: bool) -> int:
    counts = Counter(session.unit for session in sessions if session.is_simulated == is_simulated)
    return max(1, round(sum(counts.values()) ** 2 / sum(count**2 for count in counts.values())))


def _given_away(has_NF: Floats, sides_N: Floats, names: Sequence[str]) -> dict[str, float]:
    apart_F = has_NF[sides_N == 1].mean(0) - has_NF[sides_N == 0].mean(0)
    order = np.argsort(-np.abs(apart_F), kind="stable")[:_TOLD]
    return {names[place]: float(apart_F[place]) for place in order}
