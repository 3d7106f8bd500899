"""Measure how often the judges of follow-ups err, on labelled ones (`bench/words/follow_ups.jsonl`).

    python -m bench follow_ups [--write]

The linear judge is measured on follow-ups that it has not learned from: ten parts, each judged by what was learned
from the nine others. With `--write` it learns from all, and its weights are written to `scoring/derived`."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.table import Row, report
from core.reward_spec import DerivedSpec
from scoring.derived.displeasure import FollowUpJudge, LinearJudge, PatternJudge, features

CORPUS = Path(__file__).with_name("follow_ups.jsonl")
WEIGHTS = Path(__file__).resolve().parents[2] / "scoring" / "derived" / "displeasure.json"
PARTS = 10
RIDGE, STEPS, RATE = 1.0, 400, 0.3
FEWEST = 2  # follow-ups that have a feature, or it is not used
GOAL = 0.2


class FollowUp(NamedTuple):
    words: str
    finds_fault: bool


def corpus() -> list[FollowUp]:
    found = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    return [FollowUp(each["words"], each["finds_fault"]) for each in found]


def taught(examples: Sequence[FollowUp]) -> dict[str, float]:
    """Return weights by feature: logistic regression with a ridge, by gradient descent from zero."""
    seen = [features(each.words) for each in examples]
    times = Counter(feature for each in seen for feature in each)
    names = sorted(name for name, count in times.items() if count >= FEWEST)
    has = np.array([[name in each for name in names] for each in seen], dtype=float)
    said = np.array([each.finds_fault for each in examples], dtype=float)
    weights = np.zeros(len(names))
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-has @ weights))
        weights -= RATE * (has.T @ (likely - said) + RIDGE * weights) / math.sqrt(len(said))
    return {name: round(float(weight), 3) for name, weight in zip(names, weights, strict=True)}


def unseen(examples: Sequence[FollowUp]) -> list[bool]:
    """Return of each follow-up what the linear judge says that has learned from other parts of the corpus."""
    said = [False] * len(examples)
    for part in range(PARTS):
        judge = LinearJudge(taught([each for place, each in enumerate(examples) if place % PARTS != part]))
        for place in range(part, len(examples), PARTS):
            said[place] = judge.fault(examples[place].words) is not None
    return said


def by(judge: FollowUpJudge, examples: Sequence[FollowUp]) -> list[bool]:
    return [judge.fault(each.words) is not None for each in examples]


def rows(examples: Sequence[FollowUp], said: Mapping[str, Sequence[bool]]) -> Iterator[Row]:
    for name, judged in said.items():
        pairs = list(zip(judged, (each.finds_fault for each in examples), strict=True))
        faults, others = ([j for j, fault in pairs if fault is kind] for kind in (True, False))
        wrong = sum(judged != fault for judged, fault in pairs)
        low, high = wilson(wrong, len(pairs))
        among = f"[{low:.3f}, {high:.3f}], {len(pairs)} follow-ups"
        share = wrong / len(pairs)
        if name == "linear":
            yield Row.at_most(f"{name}: errors", share, "share", among, share, GOAL)
        else:
            yield Row(f"{name}: errors", share, "share", among)
        yield Row(f"{name}: fault not seen", 1 - sum(faults) / len(faults), "share", f"{len(faults)} that find fault")
        yield Row(f"{name}: fault seen where none is", sum(others) / len(others), "share", f"{len(others)} others")


def wilson(count: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    z = 1.96
    centre, reach = count + z * z / 2, z * math.sqrt(count * (of - count) / of + z * z / 4)
    return (centre - reach) / (of + z * z), (centre + reach) / (of + z * z)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked, examples = parser.parse_args(), corpus()
    if asked.write:
        WEIGHTS.write_text(json.dumps(taught(examples), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    said = {"pattern": by(PatternJudge(DerivedSpec().displeased), examples), "linear": unseen(examples)}
    report("follow_ups", list(rows(examples, said)))


if __name__ == "__main__":
    main()
