"""A lesson over real HTTP: examined, taught, examined again, with all remembered and nothing learned twice."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from scripted_service import Message, ScriptedService, say

from simulator.functions import __main__ as program
from simulator.lessons import lesson, report
from simulator.lessons.lesson import Answered, Lesson, LessonOptions
from simulator.lessons.report import gain, succeeded, summary
from simulator.lessons.run import run_lesson
from simulator.lessons.subject import Exercise


@pytest.fixture(autouse=True)
def _hasty_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson, "MEAN_DELAY_S", 0.01)
    monkeypatch.setattr(report, "SETTLE_S", 0.0)


TAUGHT = 40


@pytest.fixture(autouse=True)
def _time_by_exercises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time for teaching be over after so many exercises, however long the machine takes for them."""

    def elapsed_s(taught: Lesson) -> float:
        tried = len(taught.record.of("taught")) + len(taught.record.failures)
        return taught.plan.seconds * tried / TAUGHT

    monkeypatch.setattr(Lesson, "elapsed_s", property(elapsed_s))


class Echo:
    """A subject whose answers are right when they repeat the question."""

    workload = "echo"
    max_tokens = 8
    stop = ("\n",)

    def taught(self, seed: int) -> Iterator[Exercise]:
        return (self._exercise(f"taught {seed} {number}") for number in count())

    def held_out(self, count: int, seed: int) -> list[Exercise]:
        return [self._exercise(f"held out {seed} {number}") for number in range(count)]

    def _exercise(self, text: str) -> Exercise:
        async def right(answer: str) -> bool:
            return answer == text

        return Exercise(text.split()[0], (("user", text),), right)


def teach(service: ScriptedService, output: Path, **options: Any) -> dict[str, Any]:
    plan = LessonOptions(
        (service.url,), options.pop("seconds", 0.5), 3, options.pop("examined", 40), users=4, **options
    )
    return asyncio.run(run_lesson(plan, Echo(), None, output, {"command": "teach", "commit": None}))


def learns_after(chats: int, service: ScriptedService) -> None:
    """Let the service be wrong about all of the first requests, and right about all others, as version 2."""
    service.script.versions = lambda before: 1 if before < chats else 2
    service.script.answer = lambda messages: say(messages[-1]["content"] if len(service.chats) > chats else "?")


def test_a_model_that_learns_succeeds(
    service: ScriptedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learns_after(60, service)
    told = teach(service, tmp_path)
    assert (told["right_start"], told["right_end"], told["held_out"], told["failures"]) == (0.0, 1.0, 40, [])
    assert told["gain"][0] > 0.8
    assert TAUGHT <= told["taught"] < TAUGHT + 4, "each of the four users may be in the midst of one"
    assert told["gain_by_kind"] == {"held": [40, 0, 40]}
    assert (told["versions"], told["swaps"], told["turns"]) == (2, 1, len(service.chats))
    assert (told["lost_turns"], told["lost_outcomes"], told["failed_requests"]) == (0, 0, 0)
    assert (told["feedback_to_served_p50_s"], told["feedback_to_served_p99_s"]) == (3.5, 7.25)
    assert succeeded(told)
    assert json.loads((tmp_path / "report.json").read_text())["gain"] == list(told["gain"])
    assert "The model learned from its users." in summary(told, tmp_path)
    assert "first examination" in capsys.readouterr().out


def test_a_model_that_learns_nothing_fails(service: ScriptedService, tmp_path: Path) -> None:
    service.script.answer = lambda messages: say(messages[-1]["content"])
    told = teach(service, tmp_path)
    assert (told["right_start"], told["right_end"]) == (1.0, 1.0)
    assert not succeeded(told)
    assert "did not meet its bar" in summary(told, tmp_path)


def test_nothing_is_learned_from_examinations_and_nobody_speaks_of_them(
    service: ScriptedService, tmp_path: Path
) -> None:
    service.script.answer = lambda messages: say("?")
    told = teach(service, tmp_path)
    learned = Counter(
        (body["messages"][-1]["content"].startswith("taught"), headers["x-onward-learn"])
        for body, headers in service.chats
    )
    assert learned == {(True, "true"): told["taught"], (False, "false"): 80}
    examined = [
        body["messages"][-1]["content"] for body, headers in service.chats if headers["x-onward-learn"] == "false"
    ]
    assert Counter(examined) == {f"held out 3 {number}": 2 for number in range(40)}, "the same before and after"
    assert len(service.outcomes) == told["taught"]
    about = {body["inference_id"] for body in service.outcomes.values()}
    assert about == {
        turn
        for (body, _), turn in zip(service.chats, service.session_of, strict=True)
        if body["messages"][-1]["content"].startswith("taught")
    }


def test_requests_say_how_they_are_to_be_answered(service: ScriptedService, tmp_path: Path) -> None:
    teach(service, tmp_path, seconds=0.1, examined=2, model="smollm2")
    for body, headers in service.chats:
        assert (body["model"], body["temperature"], body["max_tokens"], body["stop"]) == ("smollm2", 1.0, 8, ["\n"])
        assert (headers["x-onward-workload"], headers["x-onward-environment"]) == ("echo", "simulated")
        assert headers["x-session-done"] == "true"


def test_users_say_whether_the_answer_was_right(service: ScriptedService, tmp_path: Path) -> None:
    service.script.answer = lambda messages: say(
        messages[-1]["content"] if messages[-1]["content"][-1] in "02468" else "?"
    )
    teach(service, tmp_path)
    said: dict[str, set[str]] = {}
    questions = dict(
        zip(service.session_of, (body["messages"][-1]["content"] for body, _ in service.chats), strict=True)
    )
    for body in service.outcomes.values():
        said.setdefault(body["metric_name"], set()).add(questions[body["inference_id"]][-1])
        assert body["value"] is True
    assert said["accepted"] <= set("02468")
    assert said["rejected"] <= set("13579")


def forget(service: ScriptedService) -> None:
    service.script.forgets = True


def refuse(service: ScriptedService) -> None:
    service.script.status = lambda route: 503 if route == "chat" and service.counts["chat"] == 70 else 200


def drop(service: ScriptedService) -> None:
    service.script.drop = lambda route, nth: route == "feedback" and nth == 2


@pytest.mark.parametrize(
    ("harm", "figures"), [(forget, (1, 0, 0)), (refuse, (0, 0, 1)), (drop, (0, 0, 1))], ids=["forget", "refuse", "drop"]
)
def test_a_lesson_with_a_loss_fails(
    service: ScriptedService, tmp_path: Path, harm: Any, figures: tuple[int, int, int]
) -> None:
    learns_after(60, service)
    harm(service)
    told = teach(service, tmp_path)
    assert (told["lost_turns"], told["lost_outcomes"], told["failed_requests"]) == figures
    assert told["gain"][0] > 0
    assert not succeeded(told)
    assert len(service.outcomes) == told["taught"], "a retry counts once"


def test_the_gain_has_an_interval() -> None:
    def answered(right: int, wrong: int) -> list[Answered]:
        return [Answered("after", "f", 0.0, each < right, "s", "i", 1, 0.1, 8) for each in range(right + wrong)]

    assert gain([], answered(1, 1)) is None
    low, high = gain(answered(30, 66), answered(54, 42)) or (0.0, 0.0)
    assert (round(low, 2), round(high, 2)) == (0.11, 0.38)
    low, _ = gain(answered(30, 66), answered(36, 60)) or (1.0, 0.0)
    assert low < 0


def table(messages: list[Message]) -> Message:
    """Answer with a right function for the one kind of request that it knows, else with nothing."""
    name = messages[-1]["content"].split("`")[1].split("(")[0]
    bodies = {"cube": "x ** 3", "cubed": "x ** 3", "square": "x * x", "squared": "x * x"}
    return say(f"```python\ndef {name}(x):\n    return {bodies.get(name, 'None')}\n```")


def test_the_program_asks_for_functions_and_fails_where_nothing_was_learned(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script.answer = table
    given = ["--url", service.url, "--output", str(tmp_path), "--seconds", "0.3", "--examined", "40"]
    monkeypatch.setattr(sys, "argv", ["functions", *given])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 1
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["right_start"] == told["right_end"] > 0
    assert told["gain_by_kind"]["cube"][1:] == [told["gain_by_kind"]["cube"][0]] * 2
    assert told["failures"] == []
    assert "did not meet its bar" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "value"), [("--examined", "0"), ("--users", "0"), ("--seconds", "-1")])
def test_what_makes_no_sense_is_refused(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["functions", "--url", "http://127.0.0.1:9", option, value])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert f"{option}: {value} is less than" in capsys.readouterr().err
