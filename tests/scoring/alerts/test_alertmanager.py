"""The files of the stack's Alertmanager, by the very version that docker-compose.monitoring.yml names."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import made_events
import pytest
import yaml
from receiver import Receiver, receiver

from core.clock import SystemClock
from core.settings import AlertSettings
from core.stages.rounds import Rounds
from core.store import open_sqlite
from deploy.services import alertmanager
from deploy.services.server import choose_port
from scoring.alerts.stage import Notifier

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "deploy" / "alertmanager"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def programs() -> Path:
    """Return their folder; skip without it, or fail where ONWARD_REQUIRE_SERVICES=1."""
    found = alertmanager.find()
    if found is None:
        missing = "needs Alertmanager: run `make alertmanager`"
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def service() -> dict[str, Any]:
    class Loader(yaml.SafeLoader):
        """Reads Compose's own tags as what they are of."""

    Loader.add_constructor("!reset", lambda loader, node: [])
    text = (ROOT / "docker-compose.monitoring.yml").read_text()
    return dict(yaml.load(text, Loader)["services"]["alertmanager"])


@contextmanager
def running(programs: Path, folder: Path, config: Path) -> Iterator[str]:
    """Start it as the stack does, with a port and places of the test's own; yield its URL once it is ready."""
    url = f"http://127.0.0.1:{choose_port(None)}"
    places = {"/etc/alertmanager/alertmanager.yml": str(config), "/alertmanager": str(folder / "data")}
    options = [
        f"{name}={places.get(value, value)}" for name, _, value in (o.partition("=") for o in service()["command"])
    ]
    listens = f"--web.listen-address={url.removeprefix('http://')}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([programs / "alertmanager", *options, listens], stdout=log, stderr=log)
        try:
            wait(lambda: process.poll() is not None or answers(f"{url}/-/ready"), folder / "log")
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()
            process.wait()


def wait(until: Callable[[], Any], log: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline_s, log.read_text()[-4000:]
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def post(url: str, *alerts: dict[str, Any]) -> None:
    """Post alerts as Prometheus does."""
    body = json.dumps([{"labels": labels, "startsAt": datetime.now(UTC).isoformat()} for labels in alerts]).encode()
    request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        assert response.status == 200


def told(hook: Receiver, status: str) -> set[str]:
    """Return the names of the alerts that the webhook was told of with this status."""
    alerts = [alert for request in list(hook.requests) for alert in request.body["alerts"]]
    return {alert["labels"]["alertname"] for alert in alerts if alert["status"] == status}


def test_it_is_the_version_of_the_stacks_image() -> None:
    assert service()["image"] == f"prom/alertmanager:{alertmanager.VERSION}"


@pytest.mark.parametrize("name", ["alertmanager", "alertmanager-webhook"])
def test_it_takes_each_of_the_shipped_files(programs: Path, tmp_path: Path, name: str) -> None:
    """It starts with them as they are; the file with the webhook's URL is read when there is something to tell."""
    config = FILES / f"{name}.yml"
    said = subprocess.run([programs / "amtool", "check-config", config], capture_output=True, text=True, check=False)
    assert (said.returncode, "SUCCESS" in said.stdout) == (0, True), said.stderr
    with running(programs, tmp_path, config) as url:
        _cmd, program, *asked = service()["healthcheck"]["test"]
        command = [programs / program, *(word.replace("http://127.0.0.1:9093", url) for word in asked)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).returncode == 0


def test_alarms_and_rules_reach_the_webhook_whose_url_stands_in_the_file(programs: Path, tmp_path: Path) -> None:
    """By the shipped file, but for its waits; what its rules hold back does not reach it."""
    config, hook_file = tmp_path / "alertmanager.yml", tmp_path / "webhook-url"
    text = (FILES / "alertmanager-webhook.yml").read_text()
    for mine, theirs in (
        (f"url_file: {hook_file}", "url_file: /run/webhook-url"),
        ("group_wait: 1s", "group_wait: 10s"),
        ("group_interval: 1s", "group_interval: 5m"),
    ):
        assert text.count(theirs) == 1, theirs
        text = text.replace(theirs, mine)
    config.write_text(text)
    store = open_sqlite(tmp_path / "store.db")
    log = tmp_path / "log"
    with receiver() as hook, running(programs, tmp_path, config) as url:
        hook_file.write_text(f"{hook.url}/onward\n")
        targets = {"alertmanager": {"kind": "alertmanager", "url": url, "timeout_s": 60}}
        rounds = Rounds("notifier", Notifier(store, AlertSettings(targets=targets), SystemClock()))  # type: ignore[arg-type]
        with store.work() as work:
            assert work.alarms.open(made_events.opening("a", opened_at=datetime.now(UTC)))
        wait(lambda: (rounds.step(0.01), open_alerts(url))[1], log)
        post(url, {"alertname": "OnwardMonitorAlarm", "severity": "critical"})
        post(url, {"alertname": "OnwardDiskFull", "severity": "critical"})
        post(url, {"alertname": "OnwardDiskFills", "severity": "warning"}, {"alertname": "OnwardStageDown"})
        wait(lambda: told(hook, "firing") >= {"questions", "OnwardDiskFull", "OnwardStageDown"}, log)
        assert open_alerts(url) == {
            **dict.fromkeys(("questions", "OnwardDiskFull", "OnwardStageDown"), "active"),
            **dict.fromkeys(("OnwardMonitorAlarm", "OnwardDiskFills"), "suppressed"),
        }
        with store.work() as work:
            work.alarms.close("a", datetime.now(UTC))
        wait(lambda: (rounds.step(0.01), told(hook, "resolved"))[1], log)
        assert {request.path for request in hook.requests} == {"/onward"}
        assert told(hook, "resolved") == {"questions"}
        assert not told(hook, "firing") & {"OnwardDiskFills"}
    store.close()


def open_alerts(url: str) -> dict[str, str]:
    """Return the state of each alert that it holds."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=PATIENCE_S) as response:
        return {each["labels"]["alertname"]: each["status"]["state"] for each in json.load(response)}


def test_where_it_cannot_be_compiled_that_is_said(tmp_path: Path) -> None:
    """Without Go, the command names what to install, and leaves nothing behind."""
    place = tmp_path / "build" / "alertmanager"
    program = f"import pathlib; from deploy.services import alertmanager as it; it.DIRECTORY = pathlib.{place!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; raise SystemExit(it.main())"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.split(":")[:2]) == (1, ["alertmanager", " go is not installed"])
    assert list(tmp_path.iterdir()) == []
