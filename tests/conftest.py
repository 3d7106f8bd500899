"""For all tests."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_WITH_ENGINES = (
    "tests/faults/",  # share a stack
    "tests/contracts/test_engine.py",
    "tests/contracts/test_policy.py",
    "tests/e2e/test_canary_service.py",
    "tests/e2e/test_sglang_service.py",
    "tests/e2e/test_soak.py",
    "tests/serving/fleet/test_fleet_policy.py",
    "tests/serving/engines/test_sglang_swap.py",
)


class _Schedule(LoadScopeScheduling):
    """What one process takes where several run the tests: a file; and one of them all that start SGLang servers, of
    which no machine carries many."""

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(_WITH_ENGINES) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Schedule(config, log)
