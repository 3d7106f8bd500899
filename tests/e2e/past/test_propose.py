"""Versions learned offline reach users: judged beside the live one, then released or held for an operator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_world import another_model, append, past
from sandboxed import require_bubblewrap
from service_tree import Service, wait_for
from task_folders import base_of, small_base, write_task

from core.errors import ConfigError
from core.events import PolicyVersion
from onward.replays.propose import propose
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation
from serving.evals.gate import GateBounds
from serving.evals.run import SuiteLimits

MakeService = Callable[..., Service]
pytestmark = pytest.mark.timeout(900)
TURNS = 24


def suite(directory: Path, cases: int, wanted: str = "") -> Path:
    """Write eval cases that any answer passes, unless `wanted` must be in it."""
    directory.mkdir()
    checker = f'{{ kind = "contains", all = ["{wanted}"] }}' if wanted else '{ kind = "contains", none = ["zzz"] }'
    case = (
        '[[case]]\nname = "{n}"\nprompt = "[web] write total(xs): sum of xs, case {n}"\nmax_tokens = 6\nchecker = {c}\n'
    )
    (directory / "cases.toml").write_text("\n".join(case.format(n=n, c=checker) for n in range(cases)))
    return directory


def add_task(suite: Path, images: Path) -> dict[str, str]:
    """Add a task that any work solves to a suite, and return the settings by which its image is had."""
    require_bubblewrap()
    images.mkdir(mode=0o755)
    small_base(images)
    write_task(suite / "task")
    task = '[[case]]\nname = "task"\ntask = "task"\ntool_set = "lines"\nbudget = { calls = 4 }\n'
    (suite / "task.cases.toml").write_text(task)
    return {"rollouts.images": json.dumps({"*": str(base_of(images))}).replace(": ", " = ")}


@pytest.fixture
def service(make_service: MakeService) -> Service:
    """Return a service with a past and without a learner."""
    service = make_service(**{"learner.enabled": "false"})
    append(service.directory, past(TURNS))
    return service.start()


@pytest.fixture
def replay(service: Service, tmp_path: Path) -> Path:
    replay_log(service.directory, tmp_path / "replay", None, None)
    return tmp_path / "replay"


def hand_over(replay: Path, service: Service, cases: Path | None) -> PolicyVersion:
    return propose(replay, service.directory, cases, SuiteLimits(), GateBounds(), 0.05)


def described(service: Service, version: int) -> dict[str, Any]:
    return next(entry for entry in service.get("/v1/policies")["data"] if entry["version"] == version)


def test_enough_cases_let_it_go_live_and_few_keep_it_for_a_person(
    service: Service, replay: Path, tmp_path: Path
) -> None:
    cases = suite(tmp_path / "few", 5)
    images = add_task(cases, tmp_path / "images")
    overrides = {"ONWARD_ROLLOUTS__IMAGES": images["rollouts.images"]}
    allowed = SuiteLimits(allow_commands=True)
    few = propose(replay, service.directory, cases, allowed, GateBounds(), 0.05, overrides)
    assert few.verdict is not None
    assert few.verdict.action == "hold"
    assert "not shown to be no worse by 5.0%" in few.verdict.why
    assert (few.verdict.figures["cases_cases"], few.verdict.figures["cases_unscored"]) == (6, 0)

    enough = hand_over(replay, service, suite(tmp_path / "enough", 40))
    assert enough.verdict is not None
    assert enough.verdict.action == "pass", enough.verdict
    wait_for(lambda: described(service, enough.version.version)["state"] == "live", what="the release of what passed")
    assert service.chat("[web] write total(xs): sum of xs")["onward"]["policy_version"] == enough.version.version

    waiting = described(service, few.version.version)
    assert waiting["state"] == "candidate"
    assert waiting["verdict"]["action"] == "hold"
    service.post(f"/v1/policies/{few.version.version}/promote", {"why": "looked at by eye"})
    wait_for(
        lambda: described(service, few.version.version)["state"] == "live", what="the release of what was promoted"
    )


def test_what_nothing_has_judged_is_kept_for_a_person(service: Service, replay: Path) -> None:
    version = hand_over(replay, service, None)
    assert version.verdict is not None
    assert version.verdict.action == "hold"
    assert "nothing has judged it" in version.verdict.why
    assert described(service, version.version.version)["state"] == "candidate"


def test_adapters_are_learned_offline_judged_and_proposed_as_adapters(
    make_service: MakeService, tmp_path: Path
) -> None:
    service = make_service(**{"learner.enabled": "false", "learner.lora.rank": 4})
    append(service.directory, past(4 * TURNS))
    service.start()
    report = replay_log(service.directory, tmp_path / "replay", None, None, overrides=service.overrides, holdout=0.5)
    assert report["held_out"] is not None
    made = propose(tmp_path / "replay", service.directory, None, SuiteLimits(), GateBounds(), 0.05, service.overrides)
    number = made.version.version
    manifest = service.directory / "blobs" / "weights" / f"{number:08d}" / "manifest.json"
    assert json.loads(manifest.read_text())["adapter"]["rank"] == 4
    service.post(f"/v1/policies/{number}/promote", {"why": "looked at by eye"})
    wait_for(lambda: described(service, number)["state"] == "live", what="the release of the adapter")
    assert service.chat("[web] write total(xs): sum of xs")["onward"]["policy_version"] == number


def test_what_nothing_has_judged_is_asked_the_services_own_cases(make_service: MakeService, tmp_path: Path) -> None:
    cases = suite(tmp_path / "own", 40)
    settings = {"release.evals.suite": str(cases), "release.evals.allow_commands": "true"}
    settings |= add_task(cases, tmp_path / "images")
    service = make_service(**{"learner.enabled": "false", **settings})
    append(service.directory, past(TURNS))
    service.start()
    replay_log(service.directory, tmp_path / "replay", None, None)
    version = propose(
        tmp_path / "replay", service.directory, None, SuiteLimits(), GateBounds(), 0.05, service.overrides
    )
    assert version.verdict is not None
    assert version.verdict.action == "ask"
    wait_for(lambda: described(service, version.version.version)["state"] == "live", what="the release of what passed")
    verdict = described(service, version.version.version)["verdict"]
    assert (verdict["action"], verdict["against"], verdict["proposed"]) == ("pass", 1, True)
    assert (verdict["figures"]["cases_cases"], verdict["figures"]["cases_unscored"]) == (41, 0)


def test_a_suite_whose_solutions_may_have_been_learned_judges_nothing(
    service: Service, replay: Path, tmp_path: Path
) -> None:
    cases = suite(tmp_path / "solved", 2)
    text = (cases / "cases.toml").read_text()
    (cases / "cases.toml").write_text(
        text.replace("max_tokens", 'solution = "def total(xs): return sum(xs)"\nmax_tokens')
    )
    with pytest.raises(ConfigError, match=r"--suite .*solved \(0, 1\): .*replay may have learned these solutions"):
        hand_over(replay, service, cases)
    own = {"ONWARD_LEARNER__ADMISSION__KEEP_OUT": str(cases)}
    with pytest.raises(ConfigError, match=r"learner\.admission\.keep_out: .*solved \(0, 1\): .*may have learned these"):
        propose(replay, service.directory, None, SuiteLimits(), GateBounds(), 0.05, own)
    assert [entry["version"] for entry in service.get("/v1/policies")["data"]] == [1]
    careful = tmp_path / "careful"
    replay_log(service.directory, careful, None, None, overrides={"ONWARD_LEARNER__ADMISSION__KEEP_OUT": str(cases)})
    version = hand_over(careful, service, cases)
    assert version.verdict is not None
    assert version.verdict.figures["cases_cases"] == 2


def test_what_cannot_be_proposed_says_why_and_leaves_nothing(service: Service, replay: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/report\.json: no such file"):
        hand_over(tmp_path / "nowhere", service, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no case files"):
        hand_over(replay, service, tmp_path / "empty")
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigError, match="new: no service has run in it"):
        propose(replay, tmp_path / "new", None, SuiteLimits(), GateBounds(), 0.05)
    assert list((tmp_path / "new").iterdir()) == []
    open_foundation(tmp_path / "begun").close()  # a start that ended before anything served
    with pytest.raises(ConfigError, match="begun: no version was ever served here"):
        propose(replay, tmp_path / "begun", None, SuiteLimits(), GateBounds(), 0.05)
    other = tmp_path / "other"
    append(other, past(TURNS))
    replay_log(other, tmp_path / "alien", None, None, overrides={"ONWARD_SERVING__MODEL": str(another_model(tmp_path))})
    with pytest.raises(ConfigError, match="alien: it began from other weights"):
        hand_over(tmp_path / "alien", service, None)
    assert [entry["version"] for entry in service.get("/v1/policies")["data"]] == [1]
