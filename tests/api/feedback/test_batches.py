"""Feedback in batches: each report is answered as it would be alone."""

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from api_harness import Service, wait_for
from byte_renderer import END, call_ids
from scripted_policy import Script
from shown_examples import BATCH, of_test

from api.feedback import batches
from api.feedback.side_by_side import _AT_ONCE, SLICE, in_slices, side_by_side
from api.http.decoding import decode_body
from core.events import Event, Topic
from core.ports import Position

UNKNOWN = "0192f0c1-2345-7890-abcd-0123456789ab"


def said(inference_id: str, **fields: Any) -> dict[str, Any]:
    return {"inference_id": inference_id, "metric_name": "accepted", "value": True, **fields}


def answer_of(service: Service) -> str:
    return str(service.chat("hi").headers["x-onward-inference-id"])


def send(service: Service, *reports: Any) -> list[dict[str, Any]]:
    answer = service.post("/v1/feedback/batch", {"feedback": reports})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


class Turns:
    """Counts the turns of the event loop on which a block runs."""

    def __init__(self) -> None:
        self.now = 0

    async def __aenter__(self) -> "Turns":
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("subjects", [range(200), [0] * 200])
def test_others_have_their_turn_between_reports(subjects: Sequence[int]) -> None:
    """Also between reports that wait for nothing, on different turns as on one."""

    async def run() -> Counter[int]:
        async with Turns() as turns:

            async def work(_: int) -> int:
                return turns.now

            return Counter(await side_by_side("ada", subjects, work))

    done = asyncio.run(run())
    assert done.total() == len(subjects)
    assert max(done.values()) <= _AT_ONCE


def test_many_requests_of_one_caller_look_no_more_often_at_once_than_two() -> None:
    running, most = Counter[str](), Counter[str]()

    async def asked(caller: str) -> list[int]:
        async def work(place: int) -> int:
            running[caller] += 1
            most[caller] = max(most[caller], running[caller])
            await asyncio.sleep(0)
            running[caller] -= 1
            return place

        return await side_by_side(caller, range(50), work)

    async def run() -> None:
        done = await asyncio.gather(*map(asked, ["mallory"] * 6), asked("ada"))
        assert done == [list(range(50))] * 7

    asyncio.run(run())
    assert most == {"mallory": 2 * _AT_ONCE, "ada": _AT_ONCE}


def test_others_have_their_turn_between_slices() -> None:
    async def run() -> list[tuple[int, int]]:
        async with Turns() as turns:
            return [(each, turns.now) async for each in in_slices(range(3 * SLICE + 1))]

    found = asyncio.run(run())
    assert [each for each, _ in found] == list(range(3 * SLICE + 1))
    assert list(Counter(turn for _, turn in found).values()) == [SLICE, SLICE, SLICE, 1]


def test_one_that_is_wrong_spoils_no_other(service: Service) -> None:
    first, second = answer_of(service), answer_of(service)
    answers = send(
        service,
        said(first, feedback_id="a"),
        said(UNKNOWN),
        {"inference_id": first, "value": 1},
        said(second, value="much"),
        said(second, colour="red"),
        7,
        said(second),
    )
    assert [each["status"] for each in answers] == [200, 404, 400, 400, 400, 400, 200]
    errors = [answers[place]["error"] for place in (1, 2, 3, 4)]
    assert [error["param"] for error in errors] == ["inference_id", "metric_name", "value", "colour"]
    assert "feedback[2]" in errors[1]["message"]
    assert answers[0]["feedback_id"] == "a"
    recorded = wait_for(lambda: len(found := service.outcomes()) == 2 and found)
    assert {outcome.inference_id for outcome in recorded} == {first, second}


def test_sent_again_it_counts_once_and_other_content_is_a_conflict(service: Service) -> None:
    inference_id = answer_of(service)
    reports = [said(inference_id, feedback_id=f"f{number}") for number in range(5)]
    assert [each["status"] for each in send(service, *reports)] == [200] * 5
    assert [each["status"] for each in send(service, *reports)] == [200] * 5
    (other,) = send(service, said(inference_id, feedback_id="f1", value=False))
    assert (other["status"], other["error"]["code"], other["retry"]) == (409, "idempotency_conflict", False)
    service.turn(inference_id)
    wait_for(lambda: len(service.outcomes()) == 5)


def test_one_may_supersede_another_of_the_same_batch(service: Service) -> None:
    inference_id = answer_of(service)
    answers = send(
        service,
        said(inference_id, feedback_id="old"),
        said(inference_id, feedback_id="new", value=False, supersedes="old"),
    )
    assert [each["status"] for each in answers] == [200, 200]
    assert wait_for(lambda: service.get("/v1/feedback/old").json().get("successor") == "new")


@pytest.mark.parametrize("named", ["chatcmpl-{}".format, str.upper])
def test_a_turn_has_one_order_however_it_is_named(
    service: Service, named: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inference_id = answer_of(service)
    append = service.log.append

    async def take_time(topic: Topic, event: Event) -> Position:
        await asyncio.sleep(0.3)
        return await append(topic, event)

    monkeypatch.setattr(service.log, "append", take_time)
    answers = send(
        service,
        said(named(inference_id), feedback_id="old"),
        said(inference_id, feedback_id="new", value=False, supersedes="old"),
    )
    assert [each["status"] for each in answers] == [200, 200]


def test_parts_of_an_answer(service: Service) -> None:
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "a"}), END)))
    tools = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]
    turn = service.chat("hi", tools=tools).json()
    inference_id, (call,) = turn["onward"]["inference_id"], turn["choices"][0]["message"]["tool_calls"]
    answers = send(
        service,
        said(inference_id, tool_call_id=call["id"]),
        said(inference_id, tool_call_id="another"),
        said(inference_id, target_range={"start": 0, "end": 2}),
        said(inference_id, target_range={"start": 0, "end": 20_000}),
        said(inference_id, target_range={"start": 2, "end": 2}),
    )
    assert [each["status"] for each in answers] == [200, 400, 200, 400, 400]
    assert [answers[place]["error"]["param"] for place in (1, 3, 4)] == ["tool_call_id", "target_range", "target_range"]


def test_the_batch_of_the_page_is_taken(service: Service) -> None:
    """That of docs/clients.md, with the ids that it leaves open."""
    service.policy.scripts.append(Script((*call_ids("edit", {"path": "a"}), END)))
    tools = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]
    called, other = service.chat("hi", tools=tools).json(), service.chat("write hello").json()
    (example,) = of_test(BATCH, "docs/clients.md")
    *_, url, _, body = shlex.split(example.text)
    first, second = json.loads(body)["feedback"]
    first |= {"inference_id": called["id"], "tool_call_id": called["choices"][0]["message"]["tool_calls"][0]["id"]}
    second |= {"inference_id": other["id"]}
    second["target_range"]["end"] = len(other["choices"][0]["message"]["content"])
    answer = service.post(url.removeprefix("localhost:8700"), {"feedback": [first, second]})
    assert [(each["status"], each["feedback_id"]) for each in answer.json()["data"]] == [(200, "a1"), (200, "a2")]


@pytest.mark.parametrize("count", [0, 5])
def test_a_batch_has_bounds(make_service: Callable[..., Service], count: int) -> None:
    service = make_service(feedback={"batch_items": 4})
    answer = service.post("/v1/feedback/batch", {"feedback": [said(UNKNOWN)] * count})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "feedback")


def test_each_counts_against_the_keys_limit(make_service: Callable[..., Service]) -> None:
    key = {"key": "key-of-ada", "namespace": "ada", "requests_per_minute": 1, "burst": 3}
    service = make_service(keys=[key])
    service.http.headers["authorization"] = "Bearer key-of-ada"
    inference_id = answer_of(service)
    answers = send(service, *[said(inference_id)] * 4)
    assert [each["status"] for each in answers] == [200, 200, 429, 429]
    assert answers[2]["retry"] is True


def test_a_small_body_of_tiny_values_is_counted_before_it_is_read(service: Service) -> None:
    """Thirty thousand reports of one byte are refused without one being made; so are a report's thousand tags."""
    many = b'{"feedback":[' + b"1," * 30_000 + b"1]}"
    one = b'{"metric_name":"accepted","tags":{' + b",".join(b'"%d":""' % n for n in range(1000)) + b"}}"
    for path, content in (("/v1/feedback/batch", many), ("/v1/feedback", one)):
        assert len(content) < 64 << 10
        answer = service.http.post(path, content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values"), answer.text


def test_others_have_their_turn_while_a_batch_is_read(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def read(decoder: Any, raw: bytes) -> Any:
        if not seen:
            asyncio.get_running_loop().call_soon(seen.append, "others")
        seen.append("a report")
        return decode_body(decoder, raw)

    monkeypatch.setattr(batches, "decode_body", read)
    assert {each["status"] for each in send(service, *([{}] * 2 * SLICE))} == {400}
    assert seen.index("others") == SLICE
