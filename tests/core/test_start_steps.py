"""A process says how its start goes."""

import pytest

from core.stages import start_steps
from core.stages.start_steps import Progress


def test_a_long_step_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 100.0
    monkeypatch.setattr(start_steps.time, "monotonic", lambda: now_s)
    progress = Progress("service", "loads the model", 400_000_000)
    for now_s, share in ((110.0, 0.0), (111.0, 0.1), (112.5, 0.5), (113.0, 0.6), (116.0, 1.0)):  # noqa: B007
        progress(share)
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[0] for line in said] == [
        "service: loads the model, 50% at 80 MB/s",
        "service: loads the model, 100% at 67 MB/s",
    ]
