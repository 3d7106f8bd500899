"""A backup of a service at work, everything destroyed, and the service back from it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from service_tree import Service, wait_for
from traffic import Traffic, check_nothing_missing, check_trained_once, stored, versions, wait_for_more

from core.events import Completion, Topic
from core.records.whole_log import read_whole
from onward.wiring.foundation import open_foundation

MakeService = Callable[..., Service]


def onward(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "onward", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def inference_ids_in_the_log(directory: Path) -> set[str]:
    foundation = open_foundation(directory)
    try:
        records = [record for batch in read_whole(foundation.log, Topic.TURNS) for record in batch]
    finally:
        foundation.close()
    return {record.event.inference_id for record in records if isinstance(record.event, Completion)}


def newest_in(directory: Path) -> int:
    """Return the newest version that the store of a directory knows."""
    with closing(open_foundation(directory)) as foundation, foundation.store.look() as view:
        return int(view.policies.newest(1)[0][0].version.version)


def test_a_service_comes_back_from_a_backup_of_its_work(make_service: MakeService, tmp_path: Path) -> None:
    """What was acknowledged before the backup is there, the learner goes on where it was, and nothing trains twice."""
    batch = {"learner__batch__turns": 16, "learner__batch__min_turns": 8, "learner__batch__max_wait_s": 0.5}
    service = make_service(**batch, learner__checkpoints__every_s=2).start()
    traffic = Traffic(service, threads=6)
    wait_for_more(service, 4)
    acknowledged = len(traffic.turns), len(traffic.outcomes)
    made = onward("backup", service.directory, "--into", tmp_path / "backup")
    assert made.returncode == 0, made.stderr
    newest_then = versions(service)
    wait_for_more(service, 2)  # another time, which will not have been
    service.kill()
    traffic.stop()
    shutil.rmtree(service.directory)
    assert "no backup" in onward("restore", service.directory, "--from", tmp_path).stderr
    back = onward("restore", service.directory, "--from", tmp_path / "backup")
    assert back.returncode == 0, back.stderr
    again = onward("restore", service.directory, "--from", tmp_path / "backup")
    assert (again.returncode, "not empty" in again.stderr) == (2, True)

    logged = inference_ids_in_the_log(service.directory)
    assert set(traffic.turns[: acknowledged[0]]) <= logged
    assert newest_in(service.directory) <= newest_then, "the backup knows nothing of what came after it"
    service.start()
    del traffic.turns[acknowledged[0] :], traffic.outcomes[acknowledged[1] :]
    wait_for(lambda: stored(service, traffic), what="the writer")
    later = Traffic(service, threads=6)
    wait_for_more(service, 3)
    later.stop()
    wait_for(lambda: stored(service, later), what="the writer")
    check_nothing_missing(service, traffic)
    assert not any(made.afresh for made in check_trained_once(service)), "the optimizer is that of the backup"
