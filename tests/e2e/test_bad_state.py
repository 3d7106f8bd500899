"""A full disk, a newer log, settings that cannot be: each is reported clearly and loses nothing acknowledged."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from kept_world import append, past
from service_tree import Refused, Service, wait_for

from core.codec import SCHEMA_VERSION
from core.events import Topic
from core.ports import TopicPartition
from ingest.sqlite.schema import connect
from onward.wiring.foundation import open_foundation

MakeService = Callable[..., Service]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("sound") / "service"
    directory.mkdir()
    made = Service(directory, {"learner.enabled": "false"})
    try:
        yield made.start()
    finally:
        made.stop()


def accept(service: Service, inference_id: str) -> Any:
    return service.post("/v1/feedback", {"inference_id": inference_id, "metric_name": "accepted", "value": True})


def test_a_full_disk(service: Service) -> None:
    """Turns are served and marked as not logged; feedback is refused; all of it ends with the shortage."""
    before = service.chat("[web] write total(xs): sum of xs")["onward"]
    process = psutil.Process(service.pid)
    unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, unlimited[1]))

    during = service.chat("[web] write total(xs): sum of xs")["onward"]
    assert during["logged"] is False
    assert during["trainable"] is False
    with pytest.raises(Refused) as refused:
        accept(service, before["inference_id"])
    assert refused.value.status == 503
    assert set(refused.value.body["error"]) == {"message", "type", "param", "code"}
    with pytest.raises(Refused) as unready:
        service.get("/readyz")
    assert unready.value.status == 503

    process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
    wait_for(lambda: service.chat("hello")["onward"]["logged"], what="the log's return")
    feedback_id = accept(service, before["inference_id"])["feedback_id"]
    wait_for(lambda: service.get("/v1/rewards")["data"], what="the reward")
    told = wait_for(lambda: is_stored(service, feedback_id), what="the feedback in the store")
    assert told["value"] is True
    turns = service.get(f"/v1/sessions/{before['session_id']}")["turns"]
    assert [turn["inference_id"] for turn in turns] == [before["inference_id"]]


def is_stored(service: Service, feedback_id: str) -> Any:
    """Return the feedback once the writer has stored it: the scorer does not wait for that, and the API not long."""
    try:
        return service.get(f"/v1/feedback/{feedback_id}")
    except Refused as refused:
        if refused.status != 503:
            raise
        return None


def test_a_log_of_a_newer_build(make_service: MakeService) -> None:
    """The readers stop before the record and name it; chat goes on."""
    service = make_service(learner__enabled="false")
    append(service.directory, past(1))
    foundation = open_foundation(service.directory)
    end = foundation.log.end(TopicPartition(Topic.TURNS, 0))
    foundation.close()
    insert_newer(service, end)

    service.start(ready=False)
    assert service.chat("[web] write total(xs): sum of xs")["onward"]["logged"] is True
    assert "onward.turns" in wait_for(lambda: complaint(service, "schema"), what="the readers' complaint")


def complaint(service: Service, word: str) -> str | None:
    """Return the body of /readyz once it mentions `word`."""
    try:
        service.get("/readyz")
    except Refused as refused:
        said = json.dumps(refused.body)
        return said if refused.status == 503 and word in said else None
    return None


def insert_newer(service: Service, offset: int) -> None:
    """Insert a record as a later build would write it: the same envelope, a higher version."""
    connection = connect(service.directory / "log.db", 5.0)
    (raw,) = connection.execute("SELECT raw FROM records WHERE topic = ? LIMIT 1", (Topic.TURNS,)).fetchone()
    newer = raw.replace(bytes([SCHEMA_VERSION]), bytes([SCHEMA_VERSION + 1]), 1)
    assert newer != raw
    connection.execute(
        "INSERT INTO records SELECT MAX(sequence) + 1, ?, 0, ?, MAX(appended_at), ? FROM records",
        (Topic.TURNS, offset, newer),
    )
    connection.close()


def test_settings_and_directories_that_cannot_be(service: Service) -> None:
    """A wrong setting is named and a directory in use is refused, both before anything is written."""
    for arguments, word in (
        ([str(service.directory)], "another service runs on this directory"),
        ([str(service.directory) + "-2", "--set", "api.prot=1"], "api.prot"),
        ([str(service.directory) + "-2", "--set", "serving.model=/nowhere"], "serving.model"),
        ([str(service.directory) + "-2", "--host", "0.0.0.0"], "key"),
    ):
        command = [sys.executable, "-m", "onward", "run", *arguments, "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr
