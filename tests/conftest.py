"""For all tests."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one process takes where several run the tests: a file, or all faults, which share a stack."""
    for item in items:
        is_fault = item.path.parent.name == "faults"
        item.add_marker(pytest.mark.xdist_group("faults" if is_fault else item.nodeid.partition("::")[0]))
