"""Feedback that came late over HTTP trains by KTO where settings say so, and replays to the bit."""

from contextlib import closing
from pathlib import Path

import pytest

from learner.sequences.scored import TurnRecord
from onward.replays.proof import lineage_of, prove_exactly_once
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation

pytestmark = pytest.mark.timeout(600)  # a service that imports torch, on whatever machine


def updated(directory: Path) -> dict[TurnRecord, float]:
    """Return what the updates of a replay did with each turn, with the age of what was said of it."""
    with closing(open_foundation(directory)) as made, made.store.look() as view:
        newest, _ = view.policies.newest(1)[0]
        lineage = lineage_of(made, newest.version)
    assert prove_exactly_once(lineage)
    return {record: age_s for each in lineage for record, age_s in zip(each.turns, each.ages_s, strict=True)}


def test_what_was_said_late_trains_without_ratios_and_replays(taught: Path, tmp_path: Path) -> None:
    """Half of what users of the service said comes too late for importance weights, as these replays see it."""
    replay_log(taught, tmp_path / "timely", None, None)
    ages_s = sorted(updated(tmp_path / "timely").values())
    middle = len(ages_s) // 2
    assert 0 < ages_s[middle - 1] < ages_s[middle]
    limit_s = (ages_s[middle - 1] + ages_s[middle]) / 2
    digests = {}
    for name, late in (("kto", "kto"), ("again", "kto"), ("dropped", "baseline")):
        settings = {"ONWARD_LEARNER__ADMISSION__DEFAULT_MAX_AGE_S": str(limit_s)}
        settings |= {"ONWARD_LEARNER__ADMISSION__LATE": late}
        digests[name] = replay_log(taught, tmp_path / name, None, None, overrides=settings)["weights_digest"]
        records = updated(tmp_path / name)
        assert {record.inference_id for record, age_s in records.items() if age_s > limit_s} == {
            record.inference_id for record in records if (record.late if late == "kto" else record.dropped == "too_old")
        }
        assert any(record.late for record in records) == (late == "kto")
    assert digests["kto"] == digests["again"]
    assert digests["kto"] != digests["dropped"]
