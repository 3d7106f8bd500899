"""The faults that are planted: mutmut's mutations of the functions of some parts, and a sample of them by a seed.

The words of a sentence are no behaviour: a text with a space in it is left as it is."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

import libcst as cst
from mutmut.configuration import config
from mutmut.mutation.file_mutation import Mutation as Candidate
from mutmut.mutation.file_mutation import create_mutations, deep_replace

ROOT = Path(__file__).resolve().parents[2]
PARTS = tuple(str(path) for path in config().source_paths)


@dataclass(frozen=True)
class MutationSite:
    """A place in a file that can be changed, and the change."""

    path: str
    module: cst.Module
    mutation: Candidate
    occurrence: int
    """Its number among those in the file that read alike."""

    def rank(self, seed: int) -> bytes:
        """Return its place in the sample, which no change elsewhere moves."""
        return blake2b(f"{seed} {self.path} {_change(self.mutation)} {self.occurrence}".encode()).digest()


@dataclass(frozen=True)
class Mutation:
    """A file with one change."""

    path: str
    line: int
    before: str
    after: str
    """The line."""
    occurrence: int
    source: str

    @property
    def name(self) -> str:
        again = f" ({self.occurrence + 1})" if self.occurrence else ""
        return f"{self.path}: {self.before} → {self.after}{again}"


def sample(seed: int, count: int, parts: Sequence[str] = PARTS) -> list[Mutation]:
    files = sorted(path for part in parts for path in (ROOT / part).rglob("*.py"))
    found = [place for path in files for place in places(path.relative_to(ROOT).as_posix(), path.read_text())]
    return [made(place) for place in sorted(found, key=lambda place: place.rank(seed))[:count]]


def places(path: str, text: str) -> Iterator[MutationSite]:
    module, mutations, *_ = create_mutations(path, text)
    seen: Counter[tuple[str, str]] = Counter()
    for each in mutations:
        change = _change(each)
        if each.contained_by_top_level_function is None or _is_prose(each.original_node) or change[0] == change[1]:
            continue
        yield MutationSite(path, module, each, seen[change])
        seen[change] += 1


def _change(mutation: Candidate) -> tuple[str, str]:
    code = cst.Module(()).code_for_node
    return code(mutation.original_node), code(mutation.mutated_node)


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in node.value


def made(place: MutationSite) -> Mutation:
    changed = deep_replace(place.module, place.mutation.original_node, place.mutation.mutated_node)
    assert isinstance(changed, cst.Module)
    source = changed.code
    lines = enumerate(zip_longest(place.module.code.splitlines(), source.splitlines(), fillvalue=""), start=1)
    line, before, after = next((number, old.strip(), new.strip()) for number, (old, new) in lines if old != new)
    return Mutation(place.path, line, before, after, place.occurrence, source)
