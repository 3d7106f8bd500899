"""Proves that an engine has loaded a version before it answers anybody.

Each rank reports a checksum of every tensor that it holds. These are compared, rank by rank,

1. with checksums computed from the files, for the tensors where that is possible (checksums.py), and
2. with what the same ranks reported before: each load that the probe confirmed leaves a reference, by the digest of the
   weights. For the same weights a rank must report the same checksums again; for other weights it must report others,
   or the load did nothing.

What neither shows, such as an error of one of several ranks in a first load, is left to the probe. A reference holds
for one start of the engine, since the next may have other arguments, and is kept while its host runs."""

import logging
from collections.abc import Sequence, Set

import msgspec

from core.errors import WeightsError
from core.ids import PolicyRef
from serving.engines.sglang.admin import Admin, EngineInfo
from serving.engines.sglang.checksums import RankChecksums, comparable
from serving.engines.sglang.verified_versions import VerifiedVersion

_MOST_REFERENCES = 64  # the newest; each has a line for every tensor
logger = logging.getLogger(__name__)


class Proof(msgspec.Struct, frozen=True):
    """What a loaded version is compared with beside its probe."""

    computed: int  # tensors that are compared with the files, those of all ranks together
    tensors: int  # of which the engine says a checksum
    ranks: int

    def __str__(self) -> str:
        if not self.tensors:
            return "the probe alone: the engine gives no checksums"
        where = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        told = f"bytes computed from the files for {self.computed} of {self.tensors} tensors{where}"
        if self.computed < self.tensors:
            told += ", for the others what this engine said of the same files before"
        return f"{told}; then the probe"


def proof_of(ranks: Sequence[RankChecksums], computed: Set[str], *, is_quantized: bool) -> Proof:
    """Return what holds an engine that says this to files of which so much can be computed."""
    compared = sum(len(comparable(rank, computed, is_quantized=is_quantized)) for rank in ranks)
    return Proof(compared, sum(len(rank.checksums) for rank in ranks), len(ranks))


class _Reference(msgspec.Struct, frozen=True):
    """What an engine said of one content, when the probe had confirmed it."""

    version: PolicyRef
    is_exact: bool
    ranks: list[RankChecksums]


class LoadedWeights:
    """Compares what one engine says that it has loaded with what it must have. One thread."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._references: dict[str, _Reference] = {}  # by the digest of their content
        self._unconfirmed: tuple[str, _Reference] | None = None
        self._started, self._is_quantized = "", False
        self._proof: Proof | None = None

    def meet(self, info: EngineInfo) -> None:
        """Take note of whom we ask: what an engine said before it was started again is no reference."""
        if info.started != self._started:
            self._references.clear()
        self._started, self._is_quantized = info.started, info.is_quantized

    def check(self, held: VerifiedVersion) -> None:
        """Ask what is loaded. Raises WeightsError naming rank and tensor when that is not this version."""
        self._unconfirmed = None
        ranks = self._admin.checksums(held.size)
        self._tell(proof_of(ranks, held.expected.checksums.keys(), is_quantized=self._is_quantized))
        wrong = self._differs_from_files(ranks, held) or self._differs_from_references(ranks, held)
        if wrong is not None:
            raise WeightsError(f"version {held.ref.version}: {wrong}")
        self._unconfirmed = held.expected.content, _Reference(held.ref.version, held.expected.is_exact, ranks)

    def confirm(self) -> None:
        """Keep what was said of the load that was checked last: the probe has shown it to be right."""
        if self._unconfirmed is not None and self._unconfirmed[1].ranks:
            content, reference = self._unconfirmed
            self._references.pop(content, None)
            self._references[content] = reference
            if len(self._references) > _MOST_REFERENCES:
                del self._references[next(iter(self._references))]
        self._unconfirmed = None

    def _tell(self, proof: Proof) -> None:
        if proof != self._proof:
            logger.info("what is loaded is shown by %s", proof)
        self._proof = proof

    def _differs_from_files(self, ranks: Sequence[RankChecksums], held: VerifiedVersion) -> str | None:
        wanted = held.expected.checksums
        for rank in ranks:
            for name in comparable(rank, wanted.keys(), is_quantized=self._is_quantized):
                if rank.checksums[name] != wanted[name]:
                    return f"{_who(rank, ranks)} loaded another {name} than is in the file"
        return None

    def _differs_from_references(self, ranks: Sequence[RankChecksums], held: VerifiedVersion) -> str | None:
        for content, reference in self._references.items():
            if [rank.place for rank in ranks] != [rank.place for rank in reference.ranks]:
                continue  # it was spread in another way then
            of_same = content == held.expected.content
            if not of_same and not (reference.is_exact and held.expected.is_exact):
                continue  # files that differ may be rounded to the same
            for rank, before in zip(ranks, reference.ranks, strict=True):
                if of_same and rank.checksums != before.checksums:
                    name = _first_other(rank, before)
                    return f"{_who(rank, ranks)} holds another {name} than when it had loaded the same before"
                if not of_same and rank.checksums and rank.checksums == before.checksums:
                    return f"{_who(rank, ranks)} holds version {reference.version}: it swallowed the load"
        return None


def _first_other(rank: RankChecksums, before: RankChecksums) -> str:
    names = sorted(rank.checksums.keys() | before.checksums.keys())
    return next(name for name in names if rank.checksums.get(name) != before.checksums.get(name))


def _who(rank: RankChecksums, ranks: Sequence[RankChecksums]) -> str:
    return "the engine" if len(ranks) == 1 else f"its rank {ranks.index(rank)}"
