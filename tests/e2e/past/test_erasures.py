"""A user is erased from a service that runs, by HTTP, although it is killed amid it: no byte of his words is left."""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from erased_files import files_with
from service_tree import Refused, Service, wait_for

from onward.cli import app

MakeService = Callable[..., Service]
CANARY = "Zugspitzfeuersalamander"


def say(service: Service, who: str, count: int, word: str) -> list[str]:
    """Chat as a user, accept every other answer, and comment on each; return the turns."""
    turns = []
    for number in range(count):
        answer = service.chat(f"[web] {word} total_{number}(xs): sum of xs", user=who, max_tokens=8)["onward"]
        turns.append(answer["inference_id"])
        for name, value in (("accepted", bool(number % 2)), ("comment", f"so much for {word}")):
            service.post("/v1/feedback", {"inference_id": turns[-1], "metric_name": name, "value": value})
    return turns


def delete(service: Service, path: str) -> Any:
    request = urllib.request.Request(service.url + path, method="DELETE")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def live(service: Service) -> int:
    return int(service.get("/v1/policies")["live"])


def test_a_user_is_erased_although_the_service_is_killed(
    make_service: MakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    service = make_service(
        learner__batch__turns=8, learner__batch__min_turns=8, archive__enabled="true", archive__interval_s=1
    ).start()
    directory = service.directory
    say(service, "alice", 8, "write")
    wait_for(lambda: live(service) >= 2, 90, "a version of Alice's turns")
    bad = say(service, "mallory", 4, CANARY)
    say(service, "alice", 4, "write")
    wait_for(lambda: live(service) >= 3, 90, "a version of Mallory's turns, too")
    wait_for(lambda: any("archive" in name for name in files_with(directory, CANARY)), what="the archive")
    app(["erase", str(directory), "--user", "mallory", "--preview"], result_action="return_value")
    said = " ".join(capsys.readouterr().out.split())
    assert "4 sessions with 4 turns would be erased" in said
    assert "goes back to version 2 and makes 1 update again" in said
    given = delete(service, "/v1/users/mallory?why=he%20asked")
    assert given["state"] == "ordered"
    assert delete(service, "/v1/users/mallory")["erasure_id"] == given["erasure_id"] == 1
    shown = service.get(f"/v1/turns/{bad[0]}")
    assert (shown["stored"], shown["outcomes"], CANARY in json.dumps(shown)) == (False, shown["outcomes"], False)
    service.kill()
    service.start()
    wait_for(lambda: service.get("/v1/erasures/1")["state"] == "done", 120, "the end of the erasure")
    told = service.get("/v1/erasures/1")
    made = live(service)
    with pytest.raises(Refused):
        delete_again(service)
    service.stop()
    assert files_with(directory, CANARY) == []
    assert made > 3
    statement = tmp_path / "statement.json"
    statement.write_text(told["statement"])
    app(["erase", "--verify", str(statement)], result_action="return_value")
    assert "signed by the key" in capsys.readouterr().out
    assert json.loads(told["statement"])["statement"]["places"]["archive"]["removed"]["records"] > 0


def onward(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "onward", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_what_was_erased_after_a_backup_does_not_come_back_with_it(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(learner__batch__turns=8, learner__batch__min_turns=8).start()
    say(service, "alice", 8, "write")
    wait_for(lambda: live(service) >= 2, 120, "a version of Alice's turns")
    bad = say(service, "mallory", 4, CANARY)
    say(service, "alice", 4, "write")
    wait_for(lambda: live(service) >= 3, 120, "a version of Mallory's turns, too")
    made = onward("backup", service.directory, "--into", tmp_path / "backup")
    assert made.returncode == 0, made.stderr
    delete(service, "/v1/users/mallory")
    wait_for(lambda: service.get("/v1/erasures/1")["state"] == "done", 120, "the end of the erasure")
    statement = tmp_path / "statement.json"
    statement.write_text(service.get("/v1/erasures/1")["statement"])
    service.kill()
    shutil.copytree(service.directory, tmp_path / "old")
    shutil.rmtree(service.directory)
    forged = tmp_path / "forged.json"
    forged.write_text(statement.read_text().replace('"default"', '"another"'))
    refused = onward("restore", service.directory, "--from", tmp_path / "backup", "--erasures", forged)
    assert (refused.returncode, "signature" in refused.stderr) == (2, True)
    without = onward("restore", tmp_path / "without", "--from", tmp_path / "backup")
    assert "came back with it" in without.stderr
    known = onward("restore", tmp_path / "known", "--from", tmp_path / "backup", "--erasures", tmp_path / "old")
    assert json.loads(known.stdout.splitlines()[-1])["erasures"] == [1], known.stderr
    back = onward("restore", service.directory, "--from", tmp_path / "backup", "--erasures", statement)
    assert json.loads(back.stdout.splitlines()[-1])["erasures"] == [1], back.stderr
    service.start()
    assert service.get(f"/v1/turns/{bad[0]}")["stored"] is False, "before anything of it was shown"
    wait_for(
        lambda: service.get("/v1/erasures/1")["state"] == "done", 120, "the end of the erasure that was ordered anew"
    )
    assert service.get("/v1/erasures/1")["by"] == "restore"
    service.stop()
    assert files_with(tmp_path / "without", CANARY) != []
    assert files_with(service.directory, CANARY) == []


def delete_again(service: Service) -> None:
    try:
        delete(service, "/v1/users/mallory")
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error.code, json.load(error)) from None
