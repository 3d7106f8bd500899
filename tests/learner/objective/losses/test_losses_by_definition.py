"""Every term of the loss against its formula, repeated here in plain numpy: values and gradients.

Legend: N sampled tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from changed_settings import changed
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.settings import ObjectiveSettings, load_settings
from learner.objective.losses import TokenInputs, token_losses

Floats = np.ndarray  # of float64
BAND, GEOMETRIC, CAP, DUAL = (0.7, 1.6), (0.9, 1.1), 1.5, 1.8
OPTIONS = {
    "correction.icepop_band": BAND,
    "correction.geometric_band": GEOMETRIC,
    "correction.ratio_cap": CAP,
    "dual_clip": DUAL,
    "clip_high": 0.28,
}

NORMALISERS = {"policy": "policy_normaliser", "kl": "kl.normaliser", "entropy": "entropy_normaliser"}


@dataclass(frozen=True)
class Tokens:
    """Tokens as the definitions see them; a turn's tokens are consecutive."""

    logp: Floats
    behaviour: Floats
    anchor: Floats
    advantage: Floats
    entropy: Floats
    keep: Floats
    turns: Floats

    @property
    def ratio(self) -> Floats:
        return np.exp(self.logp - self.behaviour)

    def by_turn(self, values: Floats) -> list[Floats]:
        return [values[self.turns == turn] for turn in dict.fromkeys(self.turns.tolist())]


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = sum(lengths)
    logp = -rng.exponential(2.0, n)
    return Tokens(
        logp=logp,
        behaviour=logp - rng.normal(0, draw(st.sampled_from([0.05, 0.5, 1.5])), n),
        anchor=logp - rng.normal(0, 0.7, n),
        advantage=rng.normal(0, 1.5, n),
        entropy=rng.exponential(1.0, n),
        keep=rng.random(n) < 0.8,
        turns=np.repeat(rng.permutation(len(lengths)), lengths),
    )


def learned(of: Tokens, settings: Mapping[str, object] = {}) -> tuple[Floats, Floats]:
    """Return (loss_N, its gradient with respect to the log-probabilities)."""
    logprobs_N = torch.tensor(of.logp, requires_grad=True)
    others = [torch.tensor(values) for values in (of.entropy, of.behaviour, of.anchor, of.advantage, of.keep, of.turns)]
    chosen = changed(ObjectiveSettings(), {"kl.coefficient": 0.0, **OPTIONS, **settings})
    loss_N = token_losses(TokenInputs(logprobs_N, *others), chosen, len(of.logp) / len(set(of.turns))).loss_N
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    return loss_N.detach().numpy(), gradient_N.numpy()


def agree(of: Tokens, found: tuple[Floats, Floats], loss: Floats, gradient: Floats) -> None:
    np.testing.assert_allclose(found[0], np.where(of.keep, loss, 0), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found[1], np.where(of.keep, gradient, 0), atol=1e-5, rtol=1e-5)


def weight(of: Tokens, correction: str) -> Floats:
    ratios = of.by_turn(of.ratio)
    match correction:
        case "none":
            return np.ones_like(of.ratio)
        case "tis":
            return np.minimum(of.ratio, CAP)
        case "tis_sequence":
            return np.concatenate([np.full(len(r), min(np.prod(r), CAP)) for r in ratios])
        case "icepop":
            return np.where((of.ratio >= BAND[0]) & (of.ratio <= BAND[1]), of.ratio, 0)
        case _:
            means = np.concatenate([np.full(len(r), np.prod(r) ** (1 / len(r))) for r in ratios])
            return np.where((means >= GEOMETRIC[0]) & (means <= GEOMETRIC[1]), np.minimum(of.ratio, CAP), 0)


@pytest.mark.parametrize("correction", ["none", "tis", "tis_sequence", "icepop", "geometric"])
@settings(max_examples=40, deadline=None)
@given(of=tokens())
def test_the_policy_gradient_under_each_correction(correction: str, of: Tokens) -> None:
    w = weight(of, correction)
    agree(of, learned(of, settings={"correction.method": correction}), -w * of.advantage * of.logp, -w * of.advantage)


@pytest.mark.parametrize("correction", ["none", "icepop", "geometric"])
@pytest.mark.parametrize("dual", [None, DUAL])
@settings(max_examples=40, deadline=None)
@given(of=tokens())
def test_ppo_clip(correction: str, dual: float | None, of: Tokens) -> None:
    """The expected loss is computed token by token, case by case."""
    loss, gradient = np.zeros_like(of.logp), np.zeros_like(of.logp)
    for n, (r, a) in enumerate(zip(of.ratio, of.advantage, strict=True)):
        bound = 1.28 if a > 0 else 0.8
        if (a > 0 and r > bound) or (a <= 0 and r < bound):
            loss[n] = -bound * a
        elif a < 0 and dual is not None and r > dual:
            loss[n] = -dual * a
        else:
            loss[n], gradient[n] = -r * a, -r * a
    within = weight(of, correction) > 0
    found = learned(of, settings={"loss": "ppo", "correction.method": correction, "dual_clip": dual})
    agree(of, found, np.where(within, loss, 0), np.where(within, gradient, 0))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@settings(max_examples=40, deadline=None)
@given(of=tokens())
def test_the_kl_in_the_loss(estimator: str, of: Tokens) -> None:
    d = of.logp - of.anchor
    loss, gradient = (d**2 / 2, d) if estimator == "k2" else (np.exp(-d) - 1 + d, 1 - np.exp(-d))
    base = learned(of)
    found = learned(of, settings={"kl.estimator": estimator, "kl.coefficient": 0.3})
    agree(of, (found[0] - base[0], found[1] - base[1]), 0.3 * loss, 0.3 * gradient)


@settings(max_examples=40, deadline=None)
@given(of=tokens())
def test_the_kl_in_the_reward(of: Tokens) -> None:
    """Each token pays for itself and for those after it in its turn."""
    to_go = np.concatenate([np.cumsum(d[::-1])[::-1] for d in of.by_turn(of.logp - of.anchor)])
    w, advantage = weight(of, "tis"), of.advantage - 0.3 * to_go
    found = learned(of, settings={"kl.estimator": "k1", "kl.placement": "reward", "kl.coefficient": 0.3})
    agree(of, found, -w * advantage * of.logp, -w * advantage)


@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
@settings(max_examples=30, deadline=None)
@given(of=tokens())
def test_each_term_has_its_own_normaliser(normaliser: str, of: Tokens) -> None:
    """The update's loss is the sum over its tokens, divided by their number."""

    def normal(loss: Floats) -> float:
        turns = of.by_turn(np.where(of.keep, loss, 0))
        match normaliser:
            case "token":
                return float(np.concatenate(turns).mean())
            case "sequence":
                return float(np.mean([turn.mean() for turn in turns]))
            case _:
                return sum(turn.sum() for turn in turns) / (len(turns) * 7)

    d = of.logp - of.anchor
    terms = {
        "policy": -weight(of, "tis") * of.advantage * of.logp,
        "kl": 0.3 * (d**2 / 2),
        "entropy": -0.1 * of.entropy,
    }
    options = {"kl.estimator": "k2", "kl.coefficient": 0.3, "entropy_coefficient": 0.1, "normaliser_tokens": 7}
    for mine in terms:
        found = learned(of, settings={**options, NORMALISERS[mine]: normaliser})[0].mean()
        others = [np.where(of.keep, loss, 0).mean() for name, loss in terms.items() if name != mine]
        assert found == pytest.approx(normal(terms[mine]) + sum(others), abs=1e-5)


def test_an_infinite_ratio_leaves_gradients_that_are_numbers() -> None:
    """The policy finds the token vastly more likely than the policy that sampled it."""
    of = Tokens(*(np.array([value]) for value in (-0.1, -1e4, -0.1, 1.0, 0.0, True, 0)))
    for advantage in (1.0, -1.0):
        other = Tokens(**{**of.__dict__, "advantage": np.array([advantage])})
        assert np.isfinite(
            learned(other, settings={"loss": "ppo", "correction.method": "none", "dual_clip": None})[1]
        ).all()


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("correction.method", {"LOSS": "ppo"}),
        ("correction.method", {"LOSS": "ppo", "CORRECTION__METHOD": "tis_sequence"}),
        ("icepop_band", {"CORRECTION__ICEPOP_BAND": "[1.5, 5.0]"}),
        ("icepop_band", {"CORRECTION__ICEPOP_BAND": "[-0.5, 5.0]"}),
        ("geometric_band", {"CORRECTION__GEOMETRIC_BAND": "[1.25, 0.8]"}),
        ("kl.normaliser", {"KL__ESTIMATOR": "k1", "KL__PLACEMENT": "reward", "KL__NORMALISER": "sequence"}),
        ("dual_clip", {"DUAL_CLIP": "1.0"}),
        ("clip_low", {"CLIP_LOW": "1.0"}),
    ],
)
def test_what_makes_no_sense_together_is_refused(named: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"learner.objective[:.].*{named}"):
        load_settings(None, {f"ONWARD_LEARNER__OBJECTIVE__{name}": value for name, value in options.items()})
