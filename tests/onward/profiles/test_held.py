"""`onward doctor` holds a running service to what its profile expects."""

import json
import os
from pathlib import Path

import psutil
import pytest

from core.errors import ConfigError
from core.profile import Expectation
from onward.directory.layout import Layout
from onward.profiles import held

GB = 10**9
COSTS = Expectation(
    service_bytes=2 * GB,
    engine_bytes=0,
    learner_bytes=GB,
    learner_most_bytes=3 * GB,
    version_bytes=1000,
    checkpoint_bytes=1000,
    disk_bytes=4000,
    turn_positions=100,
    update_s=10.0,
    served_s=25.0,
)


def test_settings_that_fit_the_machine_are_well() -> None:
    assert held.fits(COSTS, 5 * GB).startswith("5.0 GB of 5.0 GB")
    with pytest.raises(ConfigError, match=r"5\.0 GB of 4\.9 GB"):
        held.fits(COSTS, 4_900_000_000)


def test_a_process_that_takes_more_than_expected_is_named() -> None:
    process = psutil.Process()
    taken = process.memory_info().rss
    assert "expected" in held.memory(process, taken)
    with pytest.raises(ConfigError, match=r"where .* are expected"):
        held.memory(process, taken // 2)


def test_versions_and_checkpoints_are_measured_on_disk(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for root in (layout.blobs / "weights", layout.learner):
        root.mkdir(parents=True)
        (root / "file").write_bytes(b"x" * 2400)
    layout.log.write_bytes(b"x" * 100_000)  # what users said is not of the profile
    assert "engines load" not in held.disk(layout, 4000)
    (layout.learner / "file").write_bytes(b"x" * 1400)
    merged = layout.host("engine-1") / "versions" / "00000002" / "model.safetensors"
    merged.parent.mkdir(parents=True)
    merged.write_bytes(b"x" * 1000)
    assert "of it are versions as engines load them" in held.disk(layout, 4000)
    (layout.learner / "more").write_bytes(b"x" * 400)
    with pytest.raises(ConfigError, match="expected"):
        held.disk(layout, 4000)


def test_feedback_that_waits_too_long_is_named() -> None:
    name = 'onward_feedback_to_served_quantile_seconds{quantile="0.5"}'
    assert held.served({}, 25.0) == "nothing that has arrived since the start is served yet"
    assert held.served({name: 31.0}, 25.0) == "31 s, of 25 s that are expected"
    with pytest.raises(ConfigError, match="32 s, where 25 s are expected"):
        held.served({name: 32.0}, 25.0)


def test_who_runs_is_found_by_the_directory(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert held.running(layout) is None
    layout.address.write_text(json.dumps({"pid": os.getpid()}))
    found = held.running(layout)
    assert found is not None
    assert found.service.pid == os.getpid()
    assert found.learner is None
