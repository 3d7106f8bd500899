"""Settings of all tests: which marker each gets, and which tests share one worker process, or one SGLang server."""

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from sglang_server import SglangServer

# The time of an example depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A gate tries the same examples whenever it judges the same tests; everybody else's runs go on looking for new ones.
settings.register_profile("gate", parent=settings.get_profile("untimed"), derandomize=True)
settings.load_profile("gate" if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1" else "untimed")

_WITH_ENGINES = (
    "tests/faults/",  # share a stack
    "tests/contracts/serving/test_engine.py",
    "tests/contracts/serving/test_policy.py",
    "tests/e2e/engines/test_canary_service.py",
    "tests/e2e/engines/test_organisations_sglang.py",
    "tests/e2e/engines/test_sglang_service.py",
    "tests/e2e/engines/test_soak.py",
    "tests/serving/fleet/test_fleet_policy.py",
    "tests/serving/engines/test_sglang_priorities.py",
    "tests/serving/engines/test_sglang_swap.py",
    "tests/serving/engines/test_smollm2.py",
)


_VERIFIED = (
    "tests/api/live_state/test_redis.py",
    "tests/api/live_state/test_replicas_redis.py",
    "tests/api/turns/test_on_postgres.py",
    "tests/clients/own_python/test_installed.py",
    "tests/clients/typescript/",
    "tests/clients/vscode/",
    "tests/contracts/test_servers.py",
    "tests/core/settings/test_postgres.py",
    "tests/core/store/test_silent_owners.py",
    "tests/e2e/",
    "tests/environments/rollouts/test_libraries.py",
    "tests/environments/sandboxes/escapes/",
    "tests/environments/tasks/adapters/test_verifiers.py",
    "tests/environments/tasks/public/",
    "tests/faults/",
    "tests/ingest/archive/test_archive_kafka.py",
    "tests/ingest/erasure/test_erasure_killed.py",
    "tests/ingest/kafka/",
    "tests/ingest/test_writer_shared.py",
    "tests/learner/midtraining/test_checkpoint.py",
    "tests/learner/model/test_ranks.py",
    "tests/learner/model/test_shards.py",
    "tests/learner/relearning/test_orders_not_obeyed.py",
    "tests/learner/updates/test_one_update.py",
    "tests/learner/versions/test_learner_killed.py",
    "tests/onward/replays/exports/test_read_by_trl.py",
    "tests/scoring/judge/test_judge_processes.py",
    "tests/scoring/test_kill.py",
    "tests/serving/engines/test_sglang_priorities.py",
    "tests/serving/engines/test_sglang_swap.py",
    "tests/serving/engines/test_smollm2.py",
    "tests/serving/fleet/test_fleet_policy.py",
    "tests/serving/releases/controller/test_release_crashes.py",
)
_ON_SERVICES = re.compile(r"\[.*(kafka|postgres|redis|sglang).*\]")
_THE_LOOP = "tests/e2e/test_first_use.py"
_ALONE = "tests/clients/test_clients.py"
_WHOLE_SERVICES_S = 900  # on whatever machine
_UNIT = (
    "tests/core/",
    "tests/ingest/test_codec.py",
    "tests/onward/replays/selection/",
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
        if name.startswith("tests/e2e/") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_WHOLE_SERVICES_S))


@pytest.fixture(scope="session")
def tiny_sglang(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SglangServer]":
    """Yield a server with the shipped model, for tests that leave it running, with whatever weights."""
    from sglang_server import MODEL, sglang_server

    with sglang_server(MODEL, tmp_path_factory.mktemp("sglang")) as made:
        yield made


class _Schedule(LoadScopeScheduling):
    """A scheduler that gives each file to one worker, and all tests that start SGLang servers to the same one.

    No machine carries many such servers. Clients are tried one by one, by whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_ALONE):
            return nodeid
        return "engines" if nodeid.startswith(_WITH_ENGINES) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Schedule(config, log)
