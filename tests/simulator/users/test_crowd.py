"""Liars and spammers: who they are, what they say, and that the truth does not change."""

import math
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noted_requests import Sent, digest, live
from scripted_service import ScriptedService, call, expert, say, task_of

from simulator import __main__ as program
from simulator.exploits import EXPLOITS
from simulator.outcome.truth import Lived
from simulator.tasks.taste import Taste
from simulator.users import ide
from simulator.users import reports as users
from simulator.users.crowd import SPAM_WORDS, Crowd, CrowdOptions

Sessions = list[list[Sent]]


@pytest.fixture(autouse=True)
def _hasty_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MEAN_DELAY_S", 0.02)
    monkeypatch.setattr(ide, "_HANG_UP_SHARE", 0.0)


def kinds(options: CrowdOptions, seed: int = 0) -> dict[str | None, str]:
    return {user.name: user.kind for user in Crowd(options, seed).users}


def feedback(session: list[Sent]) -> list[tuple[str, Any]]:
    return [(body["metric_name"], body["value"]) for path, body, _ in session if path == "/v1/feedback"]


def without_words(sent: Sessions) -> Sessions:
    """Return the chat requests without the user's name."""
    return [
        [
            (path, {name: value for name, value in body.items() if name != "user"}, headers)
            for path, body, headers in session
            if path == "/v1/chat/completions"
        ]
        for session in sent
    ]


def qualities(lived: list[Lived]) -> list[Any]:
    return [(one.session.task.task_id, one.session.quality) for one in sorted(lived, key=lambda one: one.started_s)]


@pytest.mark.parametrize(("seed", "expected"), [(0, "ff69cb819ef18a86"), (1, "2d138a7e5ae870eb")])
def test_without_liars_spammers_and_exploits_the_same_is_sent_as_ever(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, seed: int, expected: str
) -> None:
    """Requests, bodies and headers are in the same order as before any of these existed."""
    monkeypatch.setattr(ide, "_HANG_UP_SHARE", 0.01)
    _, sent = live(service.url, seed=seed)
    assert digest(sent) == expected


@given(total=st.integers(1, 300), liars=st.floats(0, 1), spammers=st.floats(0, 1), seed=st.integers(0, 5))
def test_shares_are_exact_or_refused(total: int, liars: float, spammers: float, seed: int) -> None:
    many = round(liars * total), round(spammers * total)
    empty = (liars > 0 and not many[0]) or (spammers > 0 and not many[1])
    if empty or sum(many) > total:
        with pytest.raises(ValueError, match=r"liars|spammers"):
            CrowdOptions(liars, "invert", spammers, "same", total)
        return
    found = Counter(kinds(CrowdOptions(liars, "invert", spammers, "same", total), seed).values())
    assert (found["liar"], found["spammer"]) == many
    assert sum(found.values()) == (total if sum(many) else 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"liars": -0.1}, "liars: -0.1 is not a share between 0 and 1"),
        ({"spammers": 1.5}, "spammers: 1.5 is not a share between 0 and 1"),
        ({"liars": math.nan}, "liars: nan is not a share"),
        ({"liars": 0.001}, "liars: 0.001 of 100 users is nobody"),
        ({"liars": 0.6, "spammers": 0.5}, "more than all users"),
        ({"users": 0}, "users: 0 is too few"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CrowdOptions(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--liars", "2"], "liars: 2 is not a share between 0 and 1"),
        (["--liars", "--spammers", "1"], "more than all users"),
        (["--exploit", "nothing"], "exploit: nothing is unknown: choose one of dropped_calls, "),
        (["--lie", "white"], "--lie"),
    ],
)
def test_the_program_refuses_them_too(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", "--url", "http://127.0.0.1:9", *arguments])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_who_lies_follows_from_seed_and_user() -> None:
    few, many = kinds(CrowdOptions(liars=0.1)), kinds(CrowdOptions(liars=0.3, spammers=0.1))
    assert few == kinds(CrowdOptions(liars=0.1))
    assert few != kinds(CrowdOptions(liars=0.1), seed=1)
    assert {name for name, kind in few.items() if kind == "liar"} < {n for n, kind in many.items() if kind == "liar"}


def test_liars_say_the_contrary_and_nothing_else_changes(service: ScriptedService) -> None:
    honest, honestly = live(service.url)
    lying, with_lies = live(service.url, crowd=CrowdOptions(liars=0.3))
    assert without_words(with_lies) == without_words(honestly), "the same tasks, the same way"
    assert qualities(lying.lived) == qualities(honest.lived), "what is true stays what it was"
    liars = {name for name, kind in kinds(CrowdOptions(liars=0.3)).items() if kind == "liar"}
    lied = 0
    for before, after in zip(honestly, with_lies, strict=True):
        name = after[0][1]["user"]
        assert all(body["user"] == name for path, body, _ in after if path == "/v1/chat/completions")
        contrary = [("rejected" if metric == "accepted" else "accepted", True) for metric, _ in feedback(before)]
        assert feedback(after) == (contrary if name in liars else feedback(before))
        lied += name in liars
    assert 0.1 < lied / len(honestly) < 0.5


def test_liars_favour_one_style(service: ScriptedService) -> None:
    def contrary(messages: list[dict[str, Any]]) -> dict[str, Any]:
        task = task_of(messages[0]["content"])
        wrong = Taste().style(task).opposite
        written = task.solution(hints=wrong.hints, one_liner=wrong.one_liner)
        return say(written) if "] write " in task.request else expert(messages)

    crowd = CrowdOptions(liars=1.0, lie="style")
    liked, _ = live(service.url, crowd=crowd)
    service.script.answer = contrary
    loved, _ = live(service.url, crowd=crowd)
    for truth, word in ((liked, "rejected"), (loved, "accepted")):
        writes = [one for one in truth.lived if one.session.task.kind == "write" and one.reported]
        assert {one.reported for one in writes} == {word}
        assert {one.good for one in writes} == {word == "rejected"}


@pytest.mark.parametrize("spam", ["random", "same"])
def test_spammers_say_much_and_come_often(service: ScriptedService, spam: Any) -> None:
    crowd = CrowdOptions(spammers=0.02, spam=spam)
    truth, sent = live(service.url, crowd=crowd)
    assert live(service.url, crowd=crowd)[1] == sent, "the same again"
    spammers = {name for name, kind in kinds(crowd).items() if kind == "spammer"}
    theirs = [feedback(session) for session in sent if session[0][1]["user"] in spammers]
    others = [feedback(session) for session in sent if session[0][1]["user"] not in spammers]
    assert 0.1 < len(theirs) / len(sent) < 0.6, "two of a hundred users"
    assert {len(words) for words in theirs} == {SPAM_WORDS}
    assert max(map(len, others)) == 1
    assert all(body["user"] == session[0][1]["user"] for session in sent for _, body, _ in session if "user" in body)
    assert (len({word for words in theirs for word, _ in words}) == 1) is (spam == "same")
    assert sum(one.words for one in truth.lived) == len(truth.outcome_ids) == len(service.outcomes) // 2


def test_spammers_whom_the_service_limits_are_no_failures(service: ScriptedService) -> None:
    service.script.status = lambda route: 429 if route == "feedback" else 200
    truth, _ = live(service.url, crowd=CrowdOptions(spammers=0.02))
    theirs = sum(one.words for one in truth.lived if one.user_kind == "spammer")
    assert truth.silenced == theirs > 0
    assert len(truth.failures) == sum(one.words for one in truth.lived) - theirs > 0


def test_a_crowd_and_an_exploit_go_together(service: ScriptedService) -> None:
    service.script.answer = lambda messages: call("ask", question="?") if len(messages) == 1 else expert(messages)
    _, sent = live(service.url, crowd=CrowdOptions(liars=0.5), exploit=EXPLOITS["questions"])
    fixes = [session for session in sent if session[0][2]["x-onward-workload"] == "fix"]
    assert fixes
    assert not any(feedback(session) for session in fixes)
