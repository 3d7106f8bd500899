"""Any version that served can be gone back to: at once where its weights are kept, else after they are made again."""

import logging
import time
from itertools import count
from pathlib import Path

import pytest
from service_tree import Refused, Service, simulate

pytestmark = pytest.mark.timeout(900)  # processes that import torch, on whatever machine
logger = logging.getLogger(__name__)
LEAST = 12  # versions that served
SETTINGS = {
    "learner.batch.turns": 16,
    "learner.batch.min_turns": 8,
    "learner.checkpoints.every_s": 4,
    "serving.versions.keep": 4,
    "serving.versions.all_s": 0,
    "serving.versions.by_minute_s": 0,
    "serving.versions.by_hour_s": 0,
    "serving.versions.by_day_s": 0,
    "serving.versions.min_swap_interval_s": 0.05,
}


def test_each_version_that_served_is_gone_back_to(tmp_path: Path) -> None:
    """From the newest to the first: each serves, and those that were made again have the digest that they had."""
    (tmp_path / "service").mkdir()
    service = Service(tmp_path / "service", SETTINGS).start()
    try:
        for seed in count():  # on a busy machine a version takes longer, and more of the users' time is needed
            simulate(service, tmp_path / f"demo{seed}", seconds=20, rate=12, seed=seed).communicate(timeout=600)
            versions = service.get("/v1/policies?limit=1000")["data"]
            served = [policy for policy in versions if policy["state"] in ("retired", "live")]
            if len(served) > LEAST:
                break
        took: dict[str, list[tuple[float, float]]] = {"now": [], "rebuild": []}
        for policy in served[1:]:
            found = service.get(f"/v1/policies/{policy['version']}/rollback")
            began_s = time.monotonic()
            answer = service.post(f"/v1/policies/{policy['version']}/rollback", {"why": "as it was"})
            took[found["servable"]].append((time.monotonic() - began_s, found["about_s"]))
            assert answer["status"] == "live"
            assert service.get("/v1/policies")["live"] == policy["version"]
            said = service.chat("[web] write total(xs): sum of xs", max_tokens=4)["onward"]
            assert said["policy_version"] == policy["version"]
        logger.info("seconds of each, and what was said beforehand: %s", took)
        assert len(took["now"]) >= 2
        assert len(took["rebuild"]) >= LEAST - 6
        with pytest.raises(Refused, match="serves already"):
            service.post(f"/v1/policies/{served[-1]['version']}/rollback", {"why": "again"})
    finally:
        service.stop()
