"""A host says which llguidance its engine has: ours where it starts the engine, else what the operator says."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from stepping import step

from core.grammars.library import VERSION
from onward.wiring.engines import build_host
from onward.wiring.foundation import open_foundation

RUNS_ALREADY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "said", "told"), [(None, "", VERSION), (RUNS_ALREADY, "", ""), (RUNS_ALREADY, "1.0.0", "1.0.0")]
)
def test_the_version_is_in_the_hosts_status(tmp_path: Path, url: str | None, said: str, told: str) -> None:
    settings = {"ONWARD_SERVING__SGLANG__PYTHON": sys.executable, "ONWARD_SERVING__SGLANG__LLGUIDANCE": said}
    with closing(open_foundation(tmp_path, settings)) as foundation:
        engine, host = build_host(foundation, "engine-1", url, foundation.weights, "")
        with closing(engine), closing(host):
            step(host, 0)
            with foundation.store.look() as view:
                (status,) = view.fleet.statuses("local")
    assert status.llguidance == told
