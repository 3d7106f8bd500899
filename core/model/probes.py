"""Probe records: what a version answers to a fixed set of texts, as computed where it was published.

An engine that says that it serves version n is believed when the log-probabilities it gives these texts are the
recorded ones; its label proves nothing. The texts are sampled once, from the anchor, and travel with every record.

    probes/00000012.msgpack     32 bytes of BLAKE3 over what follows; a ProbeRecord as msgpack

Legend: P texts, L tokens of each, N = P * (L - 1) tokens that have something before them, K choices at each.
docs/decisions/0009-probes.md has the measurements behind the limits.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from core.errors import ConfigError, WeightsError
from core.ids import PolicyRef
from core.model.beside import probe_path
from core.ports import Blobs

_CHECKSUM_BYTES = 32
_LEAST_REST = 1e-6  # probability: what float32 leaves of 1 minus a sum
_ROUNDED = 1e-4  # nats: what float32 leaves of a mean over all places, and of a log-probability that is 0

Logprobs = Sequence[Sequence[float]]
Choices = Sequence[Sequence[Sequence[float]]]
Floats = NDArray[np.float64]
Nearer = Literal["own", "parent", "indistinguishable"]


class _Dtype(msgspec.Struct, frozen=True):
    """The largest differences from the record, in nats, of an engine that serves the right weights in this dtype.

    `limit` bounds the largest difference where `by_token` is set (relative to log-probabilities beyond one nat, since
    rounding grows with logits), and else the mean: in half precision one flipped router moves a token by nats. `noise`
    is the root of the mean square, the rounding of the weights included."""

    by_token: bool
    limit: float
    noise: float


_DTYPES = {
    "float32": _Dtype(by_token=True, limit=1e-4, noise=2e-5),
    "float16": _Dtype(by_token=False, limit=0.01, noise=0.01),
    "bfloat16": _Dtype(by_token=False, limit=0.05, noise=0.06),
}


class ProbeShape(NamedTuple):
    """The size of a probe: how many texts, and how long they are."""

    texts: int
    least: int  # tokens of a text
    most: int
    own: int  # of these, at least, are the anchor's own


_WHOLE = ProbeShape(texts=16, least=64, most=160, own=40)
_SHORT = ProbeShape(texts=4, least=48, most=48, own=24)
_QUICK_PARAMETERS = 30_000_000  # on a processor: a larger model takes ten seconds and more for a whole probe


def probe_shape(parameters: int, device: str) -> ProbeShape:
    """Return the shape of a probe that takes about a second, of a model of so many parameters on a torch device."""
    return _SHORT if device == "cpu" and parameters > _QUICK_PARAMETERS else _WHOLE


def spread(prompts: Sequence[Sequence[int]], texts: int) -> list[Sequence[int]]:
    """Return as many prompts as there are texts: repeated, or some of every kind where there are more."""
    return list(islice(cycle(prompts[:: max(1, len(prompts) // texts)]), texts))


class ProbeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The texts, and the K tokens that the anchor finds likeliest in each of the N places."""

    token_ids: tuple[tuple[int, ...], ...]  # P x L
    choices: tuple[tuple[tuple[int, ...], ...], ...]  # P x (L - 1) x K


class ProbeRecord(ProbeSet, frozen=True, kw_only=True):
    """Written by who publishes a version, before anybody can know of the version; read by the hosts of engines.

    Log-probabilities are nats at temperature 1. Where `finite` is false, they and the entropy may be NaN: such a
    version is published, and never serves.
    """

    logprobs: tuple[tuple[float, ...], ...]  # P x (L - 1): of each token but a text's first
    choice_logprobs: tuple[tuple[tuple[float, ...], ...], ...]  # P x (L - 1) x K
    entropy: float  # nats, mean over the N distributions, each over the whole vocabulary
    finite: bool  # all log-probabilities of the whole vocabulary, in all N places
    dtype: str  # that the publisher computed in, as torch names it
    weights_digest: str
    entropies: tuple[tuple[float, ...], ...] = ()  # P x (L - 1), nats: of each place; none in records of before

    def __post_init__(self) -> None:
        places = [len(row) - 1 for row in self.token_ids]
        if not places or min(places) < 1:
            raise ValueError("a probe needs texts of two tokens at least")
        if any([len(row) for row in rows] != places for rows in (self.choices, self.logprobs, self.choice_logprobs)):
            raise ValueError("every token of the probe but a text's first needs a log-probability and choices")
        if self.entropies and [len(row) for row in self.entropies] != places:
            raise ValueError("every token of the probe but a text's first needs an entropy, or none has one")
        sizes = {len(place) for rows in (self.choices, self.choice_logprobs) for row in rows for place in row}
        if len(sizes) != 1:
            raise ValueError("every token of the probe but a text's first needs equally many choices")


class Answers(NamedTuple):
    """What an engine computes of a probe's texts, in the shapes of a record."""

    logprobs: Logprobs
    choice_logprobs: Choices
    entropies: Logprobs


class ProbeComparison(msgspec.Struct, frozen=True):
    """True where it holds."""

    holds: bool
    why: str

    def __bool__(self) -> bool:
        return self.holds


# --------------------------------------------------------------------------------------------- blobs


def put_probe(blobs: Blobs, version: PolicyRef, record: ProbeRecord) -> None:
    """May be repeated; the last one stands."""
    data = msgspec.msgpack.encode(record)
    blobs.put(probe_path(version), blake3(data).digest() + data)


def has_probe(blobs: Blobs, version: PolicyRef) -> bool:
    """Return whether a version's probe is there; it goes with its weights."""
    return blobs.exists(probe_path(version))


def get_probe(blobs: Blobs, version: PolicyRef, weights_digest: str | None = None) -> ProbeRecord:
    """Return a version's probe. Raises WeightsError naming a blob that is missing, corrupt, or of other weights."""
    path = probe_path(version)
    try:
        content = blobs.get(path)
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: missing") from error
    checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if blake3(data).digest() != checksum:
        raise WeightsError(f"{path}: corrupt (its checksum is not the recorded one)")
    try:
        record = msgspec.msgpack.decode(data, type=ProbeRecord)
    except msgspec.DecodeError as error:
        raise WeightsError(f"{path}: no probe record ({error})") from error
    if weights_digest not in (None, record.weights_digest):
        raise WeightsError(f"{path}: of weights {record.weights_digest}, version {version} has {weights_digest}")
    return record


# --------------------------------------------------------------------------------------------- is it this version?


def agrees(measured: Logprobs, record: ProbeRecord, served_dtype: str) -> ProbeComparison:
    """Return whether an engine that computes in `served_dtype` may have these weights.

    This finds wrong weights, but may not tell them from the previous version's: use `nearer` as well. Raises
    ConfigError for a dtype without a known limit, WeightsError when `measured` is of other texts."""
    dtype = _dtype(served_dtype)
    measured_N, recorded_N = _flat(measured, record), _flat(record.logprobs, record)
    if not record.finite:
        return ProbeComparison(False, "the outputs were not finite at publication")
    if not np.isfinite(measured_N).all():
        count = int((~np.isfinite(measured_N)).sum())
        return ProbeComparison(False, f"{count} of {len(measured_N)} log-probabilities are not finite")
    gaps_N = np.abs(measured_N - recorded_N)
    return _within(gaps_N / np.maximum(1.0, np.abs(recorded_N)) if dtype.by_token else gaps_N, served_dtype)


def agrees_whole(measured: Answers, record: ProbeRecord, served_dtype: str) -> ProbeComparison:
    """Return whether all is as recorded that `figures` is made of: what `agrees` says, the choices, and the entropies.

    They are held to the same limit. The gap of a place's choices is the mean of theirs and of the rest's, each weighed
    by its probability, the measured or the recorded, whichever is more: what rounding moves a token drawn there by, and
    what KL can be moved by. An entropy is a mean over the vocabulary, so that less of the rounding is left in it.
    Entropies are not compared where the record has none, and the record's `entropy` has to be their mean. Raises as
    `agrees`, and WeightsError when choices or entropies are of other texts."""
    verdict = agrees(measured.logprobs, record, served_dtype)
    if not verdict:
        return verdict
    recorded_NK, measured_NK = _choices(record.choice_logprobs), _choices(measured.choice_logprobs)
    if recorded_NK.shape != measured_NK.shape:
        raise WeightsError("the measured choices are not of the probe's texts")
    if not (np.isfinite(recorded_NK).all() and recorded_NK.max() <= _ROUNDED):
        return ProbeComparison(False, "choices: the record has log-probabilities that are none")
    recorded_NC, measured_NC = _with_rest(recorded_NK), _with_rest(measured_NK)
    weights_NC = np.exp(np.maximum(recorded_NC, measured_NC))
    verdict = _within((weights_NC * np.abs(measured_NC - recorded_NC)).sum(-1), served_dtype, "choices: ")
    if not verdict or not record.entropies:
        return verdict
    gaps_N = np.abs(_flat(measured.entropies, record) - _flat(record.entropies, record))
    return _within(gaps_N, served_dtype, "entropies: ")


def adds_up(record: ProbeRecord) -> ProbeComparison:
    """Return whether the record's `entropy` is the mean of its entropies, if it has any and is of finite outputs."""
    if not record.entropies or not record.finite:
        return ProbeComparison(True, "there is nothing to add up")
    mean = float(_flat(record.entropies, record).mean())
    why = f"its entropy is {record.entropy:.3g} nats, the mean of its entropies {mean:.3g}"
    return ProbeComparison(abs(record.entropy - mean) <= _ROUNDED, why)


def nearer(measured: Logprobs, record: ProbeRecord, parent: ProbeRecord, served_dtype: str) -> Nearer:
    """Return to which record the measurement is nearer, in mean square: finds engines that kept the old weights.

    With noise e on top of a record, the nearer one is the right one while |e| is below half the distance between the
    two, in whatever direction e lies; where they are nearer to each other than that, it is "indistinguishable". Raises
    WeightsError when the two are of other texts, or `measured` is of others; ConfigError as `agrees`."""
    _check_same_texts(record, parent)
    own_N, parent_N, measured_N = (
        _flat(record.logprobs, record),
        _flat(parent.logprobs, parent),
        _flat(measured, record),
    )
    if not _distance(own_N, parent_N) > 2 * _dtype(served_dtype).noise:
        return "indistinguishable"
    return "own" if _distance(measured_N, own_N) < _distance(measured_N, parent_N) else "parent"


def _within(gaps_N: Floats, served_dtype: str, of: str = "") -> ProbeComparison:
    """Hold the differences from a record to the limit of a dtype; one that is not finite is beyond it."""
    dtype = _dtype(served_dtype)
    found, statistic = (gaps_N.max(), "largest") if dtype.by_token else (gaps_N.mean(), "mean")
    limit = f"the limit in {served_dtype} {dtype.limit:g}"
    why = f"{of}the {statistic} difference from the record is {found:.3g} nats, {limit}"
    return ProbeComparison(bool(found <= dtype.limit), why)


def _dtype(name: str) -> _Dtype:
    if name not in _DTYPES:
        raise ConfigError(f"no limit for a probe is known in {name}; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _distance(one_N: Floats, other_N: Floats) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean((one_N - other_N) ** 2)))


def _flat(logprobs: Logprobs, record: ProbeRecord) -> Floats:
    """[N]."""
    if [len(row) for row in logprobs] != [len(row) for row in record.logprobs]:
        raise WeightsError("the measured log-probabilities are not of the probe's texts")
    return np.array([value for row in logprobs for value in row], dtype=np.float64)


def _check_same_texts(record: ProbeRecord, other: ProbeRecord) -> None:
    if (record.token_ids, record.choices) != (other.token_ids, other.choices):
        raise WeightsError("two probes to be compared are of different texts")


# --------------------------------------------------------------------------------------------- may it serve?


def figures(record: ProbeRecord, live: ProbeRecord) -> dict[str, float]:
    """Return what the sanity gate checks, from records alone: for engines that hold one version at a time.

    `kl_to_live`: the mean over the N places of KL(candidate || live), nats, with each distribution taken over the
    place's K choices and the rest together. It is never more than over the whole vocabulary (the data processing
    inequality), and sees probability that moves outside the choices. When not finite, it and `entropy` are NaN. Raises
    WeightsError when the records are of different texts."""
    _check_same_texts(record, live)
    if not record.finite:
        return {"finite": 0.0, "kl_to_live": float("nan"), "entropy": float("nan")}
    own_NC, live_NC = (_with_rest(_choices(each.choice_logprobs)) for each in (record, live))
    divergence = float((np.exp(own_NC) * (own_NC - live_NC)).sum(-1).mean())
    return {"finite": 1.0, "kl_to_live": max(0.0, divergence), "entropy": record.entropy}


def _choices(choice_logprobs: Choices) -> Floats:
    """[N, K]."""
    return np.array([place for row in choice_logprobs for place in row], dtype=np.float64)


def _with_rest(choices_NK: Floats) -> Floats:
    """[N, K + 1]: log-probabilities of the choices, and of all else together."""
    rest_N1 = 1 - np.exp(choices_NK).sum(-1, keepdims=True)
    return np.concatenate([choices_NK, np.log(np.maximum(rest_N1, _LEAST_REST))], axis=-1)
