"""Settings of all tests: which marker each gets, and which tests share one worker process."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# The time of an example depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_WITH_ENGINES = (
    "tests/faults/",  # share a stack
    "tests/contracts/serving/test_engine.py",
    "tests/contracts/serving/test_policy.py",
    "tests/e2e/engines/test_canary_service.py",
    "tests/e2e/engines/test_sglang_service.py",
    "tests/e2e/engines/test_soak.py",
    "tests/serving/fleet/test_fleet_policy.py",
    "tests/serving/engines/test_sglang_swap.py",
    "tests/serving/engines/test_smollm2.py",
)


_VERIFIED = (
    "tests/e2e/",
    "tests/faults/",
    "tests/ingest/kafka/",
    "tests/ingest/archive/test_archive_kafka.py",
    "tests/ingest/test_writer_shared.py",
    "tests/clients/own_python/test_installed.py",
    "tests/clients/typescript/",
    "tests/clients/vscode/",
    "tests/contracts/test_servers.py",
    "tests/api/live_state/test_redis.py",
    "tests/api/live_state/test_replicas_redis.py",
    "tests/api/turns/test_on_postgres.py",
    "tests/core/settings/test_postgres.py",
    "tests/core/store/test_silent_owners.py",
    "tests/learner/midtraining/test_checkpoint.py",
    "tests/learner/model/test_ranks.py",
    "tests/learner/model/test_shards.py",
    "tests/learner/updates/test_one_update.py",
    "tests/learner/versions/test_learner_killed.py",
    "tests/scoring/judge/test_judge_processes.py",
    "tests/scoring/test_kill.py",
    "tests/serving/engines/test_sglang_swap.py",
    "tests/serving/engines/test_smollm2.py",
    "tests/serving/fleet/test_fleet_policy.py",
    "tests/serving/releases/controller/test_release_crashes.py",
)
_ON_SERVICES = re.compile(r"\[.*(kafka|postgres|redis|sglang).*\]")
_THE_LOOP = "tests/e2e/test_first_use.py"
_UNIT = (
    "tests/core/",
    "tests/ingest/test_codec.py",
    "tests/scoring/derived/",
    "tests/scoring/ledger/",
    "tests/scoring/monitors/",
    "tests/scoring/rewards/",
    "tests/serving/evals/test_eval_cases.py",
    "tests/serving/evals/test_eval_verdicts.py",
    "tests/serving/rendering/",
    "tests/test_bench_results.py",
    "tests/test_documents.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `verify` or `unit` by their path.

    `verify` tests need services, engines or several processes, or kill some; `unit` tests need no process, socket or
    tensor library."""
    for item in items:
        name = item.nodeid
        if name.startswith("tests/compose/"):
            continue
        if (name.startswith(_VERIFIED) and not name.startswith(_THE_LOOP)) or _ON_SERVICES.search(name):
            item.add_marker("verify")
        elif name.startswith(_UNIT):
            item.add_marker("unit")


class _Schedule(LoadScopeScheduling):
    """A scheduler that gives each file to one worker, and all tests that start SGLang servers to the same one.

    No machine carries many such servers."""

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(_WITH_ENGINES) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Schedule(config, log)
