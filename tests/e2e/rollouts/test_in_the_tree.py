"""Rollouts as a process of `onward run`: they go on beside the users, and their failures open an alarm."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from kept_images import KEPT
from processes import words_of
from service_tree import Service, wait_for
from task_folders import write_task

from onward.commands.rollouts.demo import with_longer_context

JUDGES = "#!/bin/sh\ntest -f answer && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"


def settings(folder: Path, tmp_path: Path) -> dict[str, str]:
    """Return the settings of a service that works on the task in `folder`, on and on."""
    return {
        "serving__model": str(with_longer_context(tmp_path / "model")),
        "learner__enabled": "false",
        "rollouts__enabled": "true",
        "rollouts__task_sets": f'{{ours = {{folders = ["{folder}"]}}}}',
        "rollouts__images": '{"*" = "machine"}',
        "rollouts__prepared": str(KEPT),
        "rollouts__episode__tokens": "64",
        "rollouts__parallel": "1",
    }


def rewarded(service: Service) -> int:
    with closing(sqlite3.connect(service.directory / "store.db")) as database:
        found: tuple[int] = database.execute("SELECT count(*) FROM outcomes WHERE name = 'task_reward'").fetchone()
    return found[0]


def rollouts_of(service: Service) -> psutil.Process | None:
    children = psutil.Process(service.pid).children()
    return next((each for each in children if "rollouts" in words_of(each)), None)


def test_they_go_on_beside_the_users_and_after_a_kill(make_service: Callable[..., Service], tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", tests=JUDGES)
    service = make_service(**settings(folder, tmp_path)).start()
    wait_for(lambda: rewarded(service) >= 2, 120, "two episodes")
    assert service.chat("[harbor] write add(a, b)", max_tokens=4)["choices"]
    process = wait_for(lambda: rollouts_of(service), 60, "the rollouts' process")
    process.kill()
    before = rewarded(service)
    wait_for(lambda: rewarded(service) >= before + 2, 120, "two more episodes after the kill")
    (alarm,) = wait_for(lambda: alarms_of(service, "stage_down"), what="the alarm")
    assert alarm["workload"] == "rollouts"
    wait_for((service.directory / "rollouts" / "report.html").exists, what="the report")


def alarms_of(service: Service, monitor: str) -> list[dict[str, Any]]:
    return [each for each in service.get("/v1/alarms")["alarms"] if each["monitor"] == monitor]


def test_a_task_at_fault_opens_an_alarm_and_the_users_are_served(
    make_service: Callable[..., Service], tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "task", settings="nonsense = 1\n")
    service = make_service(**settings(folder, tmp_path)).start(ready=False)

    def alarms() -> list[str]:
        return [each["meaning"] for each in service.get("/v1/alarms")["alarms"] if each["workload"] == "rollouts"]

    wait_for(alarms, 120, "an alarm of the stage")
    assert "the stage rollouts is down" in alarms()[0]
    assert "nonsense" in service.log_text()
    assert service.chat("[harbor] write add(a, b)", max_tokens=4)["choices"]
