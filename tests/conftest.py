"""Settings of all tests: which marker each gets, and which tests share one worker process, or one SGLang server."""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from sglang_server import SglangServer

_IN_CI = os.environ.get("ONWARD_REQUIRE_SERVICES") == "1"

# Tests of releases reward few turns, and begin with version 2; one test of the controller is about the first version.
os.environ.setdefault("ONWARD_RELEASE__FIRST_TURNS", "0")

# The time of an example depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A check tries the same examples whenever it judges the same tests; everybody else's runs go on looking for new ones.
settings.register_profile("check", parent=settings.get_profile("untimed"), derandomize=True)
settings.load_profile("check" if _IN_CI else "untimed")
if _IN_CI:
    # Examples are made of constants in the modules of ours that a process happens to have imported, too: each process
    # reads all of these for them, which takes it seconds, and tries others than the next one.
    patch.object(providers, "_get_local_constants", lambda: providers._local_constants).start()

_WITH_ENGINES = (
    "tests/faults/",  # share a stack
    "tests/contracts/serving/test_engine.py",
    "tests/contracts/serving/test_policy.py",
    "tests/e2e/engines/test_canary_service.py",
    "tests/e2e/engines/test_sglang_service.py",
    "tests/e2e/engines/test_soak.py",
    "tests/serving/engines/test_sglang_adapters.py",
    "tests/serving/engines/test_sglang_priorities.py",
    "tests/serving/engines/test_sglang_swap.py",
    "tests/serving/engines/test_smollm2.py",
)
_VERIFIED = (
    "tests/api/live_state/test_redis.py",
    "tests/api/live_state/test_replicas_redis.py",
    "tests/api/turns/test_on_postgres.py",
    "tests/clients/own_python/test_installed.py",
    "tests/contracts/test_servers.py",
    "tests/core/settings/test_postgres.py",
    "tests/core/store/test_silent_owners.py",
    "tests/e2e/",
    "tests/faults/",
    "tests/ingest/archive/test_archive_kafka.py",
    "tests/ingest/kafka/",
    "tests/ingest/test_writer_shared.py",
    "tests/learner/midtraining/test_checkpoint.py",
    "tests/learner/model/test_ranks.py",
    "tests/learner/model/test_shards.py",
    "tests/learner/updates/test_one_update.py",
    "tests/learner/versions/test_learner_killed.py",
    "tests/onward/backups/test_between_modes.py",
    "tests/scoring/alerts/test_notify_process.py",
    "tests/scoring/judge/test_judge_processes.py",
    "tests/scoring/test_kill.py",
    "tests/serving/engines/test_sglang_adapters.py",
    "tests/serving/engines/test_sglang_swap.py",
)
# By how long they take. Whoever begins one of them last works alone at the end, while the others have nothing to do.
_FIRST = (
    "engines",
    "tests/e2e/test_first_use.py",
    "tests/learner/versions/test_checkpoint_crash.py",
    "tests/test_architecture.py",
    "tests/learner/test_stage.py",
    "tests/simulator/tasks/test_sandbox.py",
    "tests/learner/model/test_memory.py",
    "tests/api/operator/test_console_browser.py",
    "tests/onward/commands/test_doctor.py",
    "tests/kernels/test_triton.py",
    "tests/checks/test_run.py",
)
_THE_LOOP = "tests/e2e/test_first_use.py"
_DEEP = (
    "tests/api/operator/test_console_browser.py::test_every_view_fits_its_window[1600]",
    "tests/clients/own_python/test_lost_connections.py::test_a_service_that_is_killed",
    "tests/clients/own_python/test_lost_connections.py::test_two_clients",
    "tests/clients/typescript/",
    "tests/clients/vscode/",
    "tests/e2e/engines/",
    "tests/e2e/past/test_any_version.py",
    "tests/e2e/past/test_backup.py",
    "tests/e2e/past/test_excluded_user.py",
    "tests/e2e/past/test_midtrain_sessions.py",
    "tests/e2e/past/test_mined_suite.py",
    "tests/e2e/past/test_mined_tasks.py",
    "tests/e2e/past/test_propose.py",
    "tests/e2e/past/test_replay.py",
    "tests/e2e/rollouts/",
    "tests/e2e/stages/test_learner_ranks.py",
    "tests/e2e/taught/",
    "tests/e2e/test_bad_state.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/test_model_families.py",
    "tests/e2e/test_pretrained_demo.py",
    "tests/e2e/test_real_model.py",
    "tests/e2e/test_traces.py",
    "tests/environments/rollouts/test_libraries.py",
    "tests/environments/rollouts/test_slow_to_open.py",
    "tests/environments/sandboxes/escapes/test_greed.py",
    "tests/environments/sandboxes/escapes/test_walls.py",
    "tests/environments/tasks/adapters/test_verifiers.py",
    "tests/environments/tasks/public/",
    "tests/environments/tasks/test_document.py::test_the_commands_of_the_page_find_the_example_fair",
    "tests/environments/tasks/test_own_tasks.py",
    "tests/faults/test_backlog.py",
    "tests/faults/test_late_services.py",
    "tests/faults/test_rebalances.py",
    "tests/faults/test_spool_full.py",
    "tests/ingest/kafka/test_kafka_outage.py::test_a_broker_killed_twice",
    "tests/kernels/test_triton.py",
    "tests/learner/midtraining/test_midtrain_streams.py",
    "tests/learner/model/test_memory.py::test_no_matrix_in_another_precision_is_kept_for_the_backward_pass[settings1]",
    "tests/learner/updates/test_regret.py",
    "tests/learner/versions/test_checkpoint_crash.py::test_a_disk_that_lost_the_end_of_a_file",
    "tests/learner/versions/test_excluded.py::test_a_lineage_that_goes_back_is_as_if_it_had_never_been[False]",
    "tests/learner/versions/test_excluded_order.py::test_two_exclusions_come_to_the_same",
    "tests/learner/versions/test_full_disk.py::test_the_learner_ends_naming_the_file_and_another_completes_the_version[probes",
    "tests/learner/versions/test_full_disk.py::test_the_learner_ends_naming_the_file_and_another_completes_the_version[publishing",
    "tests/learner/versions/test_full_disk.py::test_the_learner_ends_naming_the_file_and_another_completes_the_version[weights/00000003/manifest",
    "tests/learner/versions/test_going_back.py::test_checkpoints_of_the_past_grow_sparser",
    "tests/learner/versions/test_probe.py::test_a_resumed_learner_publishes_the_same_bits",
    "tests/learner/versions/test_probe.py::test_the_anchor_of_a_service_is_probed_where_users_are",
    "tests/onward/replays/test_adapters_lived.py::test_every_version_comes_out_as_it_was[2]",
    "tests/onward/replays/test_evals_command.py::test_a_task_is_worked_on",
    "tests/onward/replays/test_exports.py::test_trl_and_verl_read_the_prompts_of_one_file",
    "tests/onward/replays/test_exports.py::test_trl_trains_on_it_as_it_is[kto",
    "tests/scoring/alerts/test_alertmanager.py",
    "tests/scoring/judge/test_stage.py::test_the_size_of_batches_changes_nothing[1]",
    "tests/scoring/monitors/test_monitors.py::test_a_clean_service_trips_none_however_often_it_is_looked_at",
    "tests/scoring/rewards/spans/test_spans.py::test_a_turn_of_which_very_much_is_said_shares_the_value",
    "tests/serving/engines/test_sglang_adapters.py::test_a_started_server_that_dies",
    "tests/serving/engines/test_sglang_priorities.py",
    "tests/serving/engines/test_smollm2.py",
    "tests/serving/evals/test_eval_gate.py::test_how_often_it_errs",
    "tests/serving/releases/canaries/test_crowd.py::test_in_a_small_crowd_a_worse",
    "tests/serving/releases/controller/test_release_crashes.py::test_a_canary[0.0-rollback]",
    "tests/serving/releases/controller/test_release_crashes.py::test_a_release[engines1]",
    "tests/serving/releases/controller/test_release_crashes.py::test_a_rollback[engines1]",
    "tests/serving/releases/controller/test_release_crashes.py::test_superseding",
    "tests/serving/releases/controller/test_release_races.py::test_one_that_sleeps",
    "tests/serving/releases/controller/test_release_races.py::test_who_needs_long",
    "tests/serving/weights/test_delta_files.py::test_memory_stays_bounded",
    "tests/serving/weights/test_delta_weights.py::test_processes_share_one_cache",
    "tests/simulator/exploits/test_exploits.py::test_only_the_words_change",
    "tests/simulator/tasks/test_sandbox.py::test_one_worker_survives_all_of_it",
    "tests/simulator/tasks/test_tasks.py::test_no_task_of_the_whole_corpus",
    "tests/simulator/tasks/test_tiny_model.py::test_its_tokenizer_follows",
    "tests/simulator/test_report.py::test_a_model_that_learns_succeeds",
    "tests/simulator/users/test_crowd.py",
    "tests/test_mutants.py::test_a_sample_is_of_the_code",
    "tests/test_smollm2.py",
)
_SERVICES = ("kafka", "postgres", "redis", "sglang", "sglang_of_its_own", "sglang_of_another")
_OF_EXPERTS = "[sglang-moe"  # a second kind of model, which takes a server of its own
_VERIFIED_TIMEOUT_S = 900  # longer than a whole service may take to start, on whatever machine
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


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by how many they are. Workers must agree on each name, and what is compressed may hold the time."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among the million objects that are imported, neither while they are nor later.

    Each such look takes up to a second, and every worker imports all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # what tests leave is looked through as seldom as in the service
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `deep`, `verify` or `unit`, by their paths and by the services that they are given.

    `deep` tests are long, or of one folder alone; `verify` tests need services, engines or several processes, or kill
    some; `unit` tests need no process, socket or tensor library. A test that is both deep and verified is deep."""
    for item in items:
        name = item.nodeid
        if name.startswith("tests/compose/"):
            continue
        if name.startswith(_DEEP) or _OF_EXPERTS in name:
            item.add_marker("deep")
        elif (name.startswith(_VERIFIED) and not name.startswith(_THE_LOOP)) or _is_on_services(name):
            item.add_marker("verify")
        elif name.startswith(_UNIT):
            item.add_marker("unit")
        if name.startswith((*_DEEP, *_VERIFIED)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_VERIFIED_TIMEOUT_S))


def _is_on_services(name: str) -> bool:
    """Return whether a test's parameters name a service: `[kafka]`, `[postgres-turns.newest]`."""
    parameters = name.partition("[")[2].removesuffix("]")
    return any(each in _SERVICES for each in parameters.split("-"))


@pytest.fixture(scope="session")
def tiny_sglang(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SglangServer]":
    """Yield a server with the shipped model, for tests that leave it running, with whatever weights.

    It takes adapters of rank 8 at most by name."""
    from sglang_server import MODEL, sglang_server

    from serving.engines.sglang.adapters import room_for
    from serving.engines.sglang.process import adapter_arguments

    room = room_for(MODEL, 8, ())
    assert room is not None
    with sglang_server(MODEL, tmp_path_factory.mktemp("sglang"), extra=adapter_arguments(room, "cpu")) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    """Let all stores in files share what SQLAlchemy compiles: tests have stores of their own, with the same statements.

    What is compiled is known by the very dialect, of which every engine has its own."""
    from sqlalchemy import Engine, create_engine

    from core.store.database import sqlite

    first = create_engine("sqlite://", query_cache_size=10_000)
    first.connect().close()
    first.dispose()

    def made(*given: Any, **options: Any) -> Engine:
        engine = create_engine(*given, **options)
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with patch.object(sqlite, "create_engine", made):
        yield


class _Schedule(LoadScopeScheduling):
    """A scheduler that gives each file to one worker, and all tests that start SGLang servers to the same one.

    No machine carries many such servers. What takes longest begins first."""

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(_WITH_ENGINES) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        if self.workqueue:
            first = min(self.workqueue, key=lambda scope: _FIRST.index(scope) if scope in _FIRST else len(_FIRST))
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Schedule(config, log)
