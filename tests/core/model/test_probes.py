"""Probe records are kept whole, and versions are recognised and compared by them."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from core.blobs import FsspecBlobs
from core.errors import ConfigError, WeightsError
from core.ids import base_ref
from core.model.beside import probe_path
from core.model.probes import (
    Answers,
    Logprobs,
    ProbeRecord,
    agrees,
    agrees_whole,
    figures,
    get_probe,
    nearer,
    put_probe,
)

TEXTS, TOKENS, VOCABULARY, CHOICES = 4, 9, 40, 5
PLACES = TEXTS * (TOKENS - 1)
LIMITS = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
NOISES = {"float32": 2e-5, "float16": 0.01, "bfloat16": 0.06}


def distributions(seed: int, spread: float = 2.0) -> np.ndarray:
    """Return random log-probabilities [N, V]."""
    logits = np.random.default_rng(seed).normal(size=(PLACES, VOCABULARY)) * spread
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


ANCHOR = distributions(0)
CHOSEN = np.argsort(-ANCHOR, axis=-1)[:, :CHOICES]


def make_record(logp: np.ndarray = ANCHOR, **changes: object) -> ProbeRecord:
    """Return the record of a version whose distributions are `logp`, on one fixed set of texts."""
    rng = random.Random(7)
    ids = [[rng.randrange(VOCABULARY) for _ in range(TOKENS)] for _ in range(TEXTS)]
    targets = np.array([text[1:] for text in ids]).reshape(-1, 1)
    rows = (TEXTS, TOKENS - 1)
    fields = {
        "token_ids": ids,
        "choices": CHOSEN.reshape(*rows, CHOICES).tolist(),
        "logprobs": np.take_along_axis(logp, targets, 1).reshape(rows).tolist(),
        "choice_logprobs": np.take_along_axis(logp, CHOSEN, 1).reshape(*rows, CHOICES).tolist(),
        "entropy": float(-(np.exp(logp) * logp).sum(-1).mean()),
        "finite": True,
        "dtype": "float32",
        "weights_digest": "digest",
        "entropies": (-(np.exp(logp) * logp).sum(-1)).reshape(rows).tolist(),
    }
    return msgspec.convert(fields | changes, ProbeRecord)


def moved(logprobs: Logprobs, by: np.ndarray | float) -> Logprobs:
    return (np.array(logprobs) + np.broadcast_to(by, (PLACES,)).reshape(TEXTS, -1)).tolist()  # type: ignore[no-any-return]


@pytest.fixture
def blobs(tmp_path: Path) -> FsspecBlobs:
    return FsspecBlobs(tmp_path)


# --------------------------------------------------------------------------------------------- blobs


def test_a_record_comes_back_as_it_was_put(blobs: FsspecBlobs) -> None:
    broken = make_record(logprobs=[[float("-inf")] * (TOKENS - 1)] * TEXTS, finite=False)
    for version, record in ((1, make_record()), (12, broken)):
        put_probe(blobs, base_ref(version), record)
        assert get_probe(blobs, base_ref(version), "digest") == record
    assert blobs.list("") == ["probes/00000001.msgpack", "probes/00000012.msgpack"]


def test_the_last_put_stands(blobs: FsspecBlobs) -> None:
    put_probe(blobs, base_ref(3), make_record())
    put_probe(blobs, base_ref(3), make_record(weights_digest="other"))
    assert get_probe(blobs, base_ref(3)).weights_digest == "other"


def test_a_missing_record_is_named(blobs: FsspecBlobs) -> None:
    with pytest.raises(WeightsError, match=r"probes/00000003\.msgpack: missing"):
        get_probe(blobs, base_ref(3))


def test_any_flipped_bit_and_any_lost_byte_is_found(blobs: FsspecBlobs) -> None:
    put_probe(blobs, base_ref(3), make_record())
    whole = blobs.get(probe_path(base_ref(3)))
    rng = random.Random(1)
    damaged = [whole[:length] for length in (0, 10, 32, len(whole) - 1)]
    for at in [0, 31, 32, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(50))]:
        content = bytearray(whole)
        content[at] ^= 1 << rng.randrange(8)
        damaged.append(bytes(content))
    for content in damaged:
        blobs.put(probe_path(base_ref(3)), content)
        with pytest.raises(WeightsError, match=r"probes/00000003\.msgpack: (corrupt|no probe)"):
            get_probe(blobs, base_ref(3))


def test_a_record_of_other_weights_is_refused(blobs: FsspecBlobs) -> None:
    put_probe(blobs, base_ref(3), make_record(weights_digest="of version 2"))
    with pytest.raises(WeightsError, match=r"probes/00000003\.msgpack: of weights of version 2, version 3 has digest"):
        get_probe(blobs, base_ref(3), "digest")


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": make_record().logprobs[:-1]},
        {"choices": make_record().choices[1:]},
        {"choice_logprobs": [row[1:] for row in make_record().choice_logprobs]},
        {"choice_logprobs": [[place[1:] for place in row] for row in make_record().choice_logprobs]},
        {"entropies": make_record().entropies[1:]},
        {"token_ids": []},
        {"token_ids": [[1]], "logprobs": [[]], "choices": [[]], "choice_logprobs": [[]]},
    ],
)
def test_a_record_that_lacks_something_is_none(blobs: FsspecBlobs, change: dict[str, object]) -> None:
    """The bytes are whole, but the publisher wrote a wrong record."""
    data = msgspec.msgpack.encode(msgspec.to_builtins(make_record()) | change)
    blobs.put(probe_path(base_ref(3)), blake3(data).digest() + data)
    with pytest.raises(WeightsError, match="no probe record"):
        get_probe(blobs, base_ref(3))


# --------------------------------------------------------------------------------------------- is it this version?


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_record_itself_agrees_up_to_the_limit(dtype: str) -> None:
    record = make_record(logprobs=[[-0.5] * (TOKENS - 1)] * TEXTS)
    assert agrees(record.logprobs, record, dtype)
    assert agrees(moved(record.logprobs, 0.99 * LIMITS[dtype]), record, dtype)
    refused = agrees(moved(record.logprobs, -1.01 * LIMITS[dtype]), record, dtype)
    assert not refused
    assert f"the limit in {dtype} {LIMITS[dtype]:g}" in refused.why


def test_one_token_decides_in_full_precision_and_the_mean_in_half() -> None:
    record, outlier = make_record(), np.zeros(PLACES)
    outlier[5] = 0.3
    measured = moved(record.logprobs, outlier)
    assert [bool(agrees(measured, record, dtype)) for dtype in LIMITS] == [False, True, True]


def test_full_precision_grants_unlikely_tokens_their_rounding() -> None:
    far = make_record(logprobs=[[-30.0] * (TOKENS - 1)] * TEXTS)
    assert agrees(moved(far.logprobs, 2e-3), far, "float32")
    assert not agrees(moved(far.logprobs, 4e-3), far, "float32")


@pytest.mark.parametrize("dtype", LIMITS)
def test_choices_count_by_their_probability_and_entropies_alike(dtype: str) -> None:
    """To rounding an improbable choice may be anything; a lie about a probable one, in either direction, is found."""
    record, limit = make_record(), LIMITS[dtype]
    told = Answers(record.logprobs, record.choice_logprobs, record.entropies)
    assert agrees_whole(told, record, dtype)
    assert agrees_whole(told._replace(entropies=moved(record.entropies, 0.99 * limit)), record, dtype)
    assert not agrees_whole(told._replace(entropies=moved(record.entropies, -1.01 * limit)), record, dtype)
    for first, other, holds in ((-0.1, -0.1 - limit / 2, True), (-0.1, -6.0, False), (-6.0, -0.1, False)):
        mine = [[[first, -15.4]] * (TOKENS - 1)] * TEXTS
        theirs = [[[other, -15.0]] * (TOKENS - 1)] * TEXTS
        here = make_record(choice_logprobs=theirs, choices=[[[0, 1]] * (TOKENS - 1)] * TEXTS)
        assert bool(agrees_whole(told._replace(choice_logprobs=mine), here, dtype)) is holds
    wild = make_record(choice_logprobs=[[[1.0] * CHOICES] * (TOKENS - 1)] * TEXTS)
    assert not agrees_whole(told, wild, dtype)
    with pytest.raises(WeightsError, match="choices"):
        agrees_whole(told._replace(choice_logprobs=record.choice_logprobs[1:]), record, dtype)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("dtype", LIMITS)
def test_what_is_not_finite_never_agrees(value: float, dtype: str) -> None:
    record, by = make_record(), np.zeros(PLACES)
    by[3] = value
    verdict = agrees(moved(record.logprobs, by), record, dtype)
    assert not verdict
    assert verdict.why == f"1 of {PLACES} log-probabilities are not finite"
    broken = make_record(finite=False)
    assert not agrees(broken.logprobs, broken, dtype)


def test_measurements_of_other_texts_are_refused() -> None:
    record = make_record()
    for measured in (record.logprobs[1:], [row[1:] for row in record.logprobs], []):
        for judge in (
            lambda measured: agrees(measured, record, "float32"),
            lambda measured: nearer(measured, record, make_record(distributions(1)), "float32"),
        ):
            with pytest.raises(WeightsError, match="not of the probe's texts"):
                judge(measured)


def test_a_dtype_without_a_limit_is_named() -> None:
    record = make_record()
    for judge in (
        lambda: agrees(record.logprobs, record, "float8_e4m3fn"),
        lambda: nearer(record.logprobs, record, record, "float8_e4m3fn"),
    ):
        with pytest.raises(ConfigError, match="float8_e4m3fn; known: float32, float16, bfloat16"):
            judge()


@pytest.mark.parametrize("dtype", NOISES)
@given(seed=st.integers(0, 10_000), towards=st.floats(-1, 1), share=st.floats(0, 0.99))
def test_noise_below_half_the_distance_never_misleads(dtype: str, seed: int, towards: float, share: float) -> None:
    """The noise may have any direction, also straight towards the other record."""
    rng = np.random.default_rng(seed)
    own = make_record()
    step = rng.normal(size=PLACES)
    step *= 2.01 * NOISES[dtype] / np.sqrt(np.mean(step**2))
    parent = make_record(logprobs=moved(own.logprobs, step))
    noise = towards * step / np.linalg.norm(step) + (1 - abs(towards)) * rng.normal(size=PLACES) / np.sqrt(PLACES)
    noise *= share * np.linalg.norm(step) / 2 / max(np.linalg.norm(noise), 1e-9)
    assert nearer(moved(own.logprobs, noise), own, parent, dtype) == "own"
    assert nearer(moved(parent.logprobs, noise), own, parent, dtype) == "parent"


@pytest.mark.parametrize("dtype", NOISES)
def test_versions_closer_than_the_noise_are_not_told_apart(dtype: str) -> None:
    own = make_record()
    parent = make_record(logprobs=moved(own.logprobs, 1.99 * NOISES[dtype]))
    for measured in (own.logprobs, parent.logprobs):
        assert nearer(measured, own, parent, dtype) == "indistinguishable"
    assert nearer(own.logprobs, own, own, dtype) == "indistinguishable"


# --------------------------------------------------------------------------------------------- may it serve?


def exact_kl(own: np.ndarray, live: np.ndarray) -> float:
    return float((np.exp(own) * (own - live)).sum(-1).mean())


def coarse(logp: np.ndarray) -> np.ndarray:
    """Return the distribution over the choices and the rest as one, by its definition."""
    chances = np.exp(logp)
    chosen = np.take_along_axis(chances, CHOSEN, 1)
    return np.log(np.concatenate([chosen, chances.sum(-1, keepdims=True) - chosen.sum(-1, keepdims=True)], axis=1))


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.floats(0.01, 3))
def test_the_divergence_is_that_of_the_choices_and_never_above_the_whole(one: int, other: int, spread: float) -> None:
    own, live = distributions(one, spread), distributions(other, spread)
    found = figures(make_record(own), make_record(live))
    assert found["kl_to_live"] == pytest.approx(exact_kl(coarse(own), coarse(live)), abs=1e-9)
    assert 0 <= found["kl_to_live"] <= exact_kl(own, live)
    assert (found["finite"], found["entropy"]) == (1.0, make_record(own).entropy)


def test_itself_it_does_not_diverge_from() -> None:
    assert figures(make_record(), make_record())["kl_to_live"] == 0.0


def test_what_leaves_the_choices_is_seen() -> None:
    """The candidate says only one thing, which the anchor would hardly ever say."""
    collapsed = np.full((PLACES, VOCABULARY), -30.0)
    np.put_along_axis(collapsed, np.argmin(ANCHOR, axis=-1)[:, None], 0.0, 1)
    assert figures(make_record(collapsed), make_record())["kl_to_live"] > 1.0


def test_what_was_not_finite_has_no_figures() -> None:
    broken = make_record(logprobs=[[float("nan")] * (TOKENS - 1)] * TEXTS, entropy=float("nan"), finite=False)
    found = figures(broken, make_record())
    assert found["finite"] == 0.0
    assert np.isnan([found["kl_to_live"], found["entropy"]]).all()


def test_records_of_other_texts_are_not_compared() -> None:
    record = make_record()
    elsewhere = make_record(token_ids=[[1] * TOKENS] * TEXTS)
    otherwise = make_record(choices=np.full((TEXTS, TOKENS - 1, CHOICES), 3).tolist())
    for other in (elsewhere, otherwise):
        with pytest.raises(WeightsError, match="different texts"):
            figures(record, other)
        with pytest.raises(WeightsError, match="different texts"):
            nearer(record.logprobs, record, other, "float32")
