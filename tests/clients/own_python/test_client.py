"""The Python client against the service: sessions, answers, feedback, and what the service refuses."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import openai
import pytest
from api_harness import MODEL, WAIT_S, Service, serve, wait_for
from onward_client import AsyncOnward, Onward, QueueFull, RequestRefused, Unreachable, inference_id_of

HI = [{"role": "user", "content": "hi"}]


def test_an_answer_and_feedback_on_it(service: Service, tmp_path: Path) -> None:
    with Onward(service.url, queue=tmp_path / "queue.db", harness="editor/1.0") as onward:
        session = onward.session(workload="fix", learn=False)
        answer = session.openai().chat.completions.create(model=MODEL, messages=HI)  # type: ignore[call-overload]
        feedback_id = onward.feedback(answer, "accepted", True, tags={"view": "diff"})
        assert onward.flush(WAIT_S) == 0
    turn = service.turn(inference_id_of(answer))
    assert (turn.session_id, turn.workload, turn.learn) == (session.session_id, "fix", False)
    assert turn.harness_version == "editor/1.0"
    (outcome,) = wait_for(service.outcomes)
    assert (outcome.outcome_id, outcome.inference_id) == (feedback_id, turn.inference_id)
    assert (outcome.value, outcome.tags) == (True, {"view": "diff"})


def test_no_proxy_stands_before_this_machine(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = service.client().chat.completions.create(model=MODEL, messages=HI)  # type: ignore[call-overload]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    async def work() -> int:
        async with AsyncOnward(service.url) as onward:
            async with onward.session().openai() as inner:
                assert (await inner.completions.create(model=MODEL, prompt="hi")).choices
            await onward.feedback(answer, "accepted", True)
            return await onward.flush(WAIT_S)

    assert asyncio.run(work()) == 0
    with Onward(service.url) as onward:
        with onward.session().openai() as inner:
            assert inner.completions.create(model=MODEL, prompt="hi").choices
        onward.feedback(answer, "accepted", True)
        assert onward.flush(WAIT_S) == 0


def test_a_client_that_is_wrapped_keeps_its_own_options(service: Service) -> None:
    own = service.client(default_headers={"x-onward-workload": "mine"}, max_retries=0)
    with Onward(service.url) as onward:
        session = onward.session()
        wrapped: openai.OpenAI = session.wrap(own)
        chunks = list(wrapped.completions.create(model=MODEL, prompt="def f", stream=True))
        onward.feedback(chunks[0], "accepted", False)
    turn = service.turn(inference_id_of(chunks[0]))
    assert (turn.session_id, turn.workload) == (session.session_id, "mine")
    (outcome,) = wait_for(service.outcomes)
    assert (outcome.inference_id, outcome.value) == (turn.inference_id, False)


def test_a_client_of_anthropics_is_wrapped_as_well(service: Service) -> None:
    from anthropic import Anthropic

    options: dict[str, Any] = {"base_url": service.url, "api_key": "any", "max_retries": 0}
    own = Anthropic(**options, default_headers={"x-onward-workload": "mine"})
    with own, Onward(service.url) as onward:
        session = onward.session(learn=False)
        wrapped: Anthropic = session.wrap(own)
        whole = wrapped.messages.create(model=MODEL, messages=HI, max_tokens=8)  # type: ignore[call-overload]
        events = list(wrapped.messages.create(model=MODEL, messages=HI, max_tokens=8, stream=True))  # type: ignore[call-overload]
        with wrapped.messages.stream(model=MODEL, messages=HI, max_tokens=8) as stream:  # type: ignore[arg-type]
            gathered = stream.get_final_message()
        begun, *_, ended, _ = events
        assert inference_id_of(begun) == inference_id_of(ended)
        for answer in (whole, begun, gathered):
            onward.feedback(answer, "accepted", True)
        with pytest.raises(ValueError, match="MessageStopEvent without an inference id"):
            onward.feedback(events[-1], "accepted", True)
    told = wait_for(lambda: len(found := service.outcomes()) == 3 and found)
    turns = [service.turn(outcome.inference_id) for outcome in told]
    assert len({turn.inference_id for turn in turns}) == 3
    assert {(turn.session_id, turn.workload, turn.learn) for turn in turns} == {(session.session_id, "mine", False)}


def test_an_async_client_of_anthropics_is_wrapped_as_well(service: Service) -> None:
    from anthropic import AsyncAnthropic

    async def work() -> tuple[str, str]:
        options: dict[str, Any] = {"base_url": service.url, "api_key": "any", "max_retries": 0}
        async with AsyncAnthropic(**options) as own, AsyncOnward(service.url) as onward:
            session = onward.session()
            wrapped: AsyncAnthropic = session.wrap(own)
            answer = await wrapped.messages.create(model=MODEL, messages=HI, max_tokens=8)  # type: ignore[call-overload]
            await onward.feedback(answer, "accepted", True)
            return session.session_id, inference_id_of(answer)

    session_id, inference_id = asyncio.run(work())
    assert service.turn(inference_id).session_id == session_id
    assert [outcome.inference_id for outcome in wait_for(service.outcomes)] == [inference_id]


def test_each_of_several_choices_is_an_inference_of_its_own(service: Service) -> None:
    with Onward(service.url) as onward:
        answer = onward.session().openai().completions.create(model=MODEL, prompt="x", n=2)
        with pytest.raises(ValueError, match="name one of its choices"):
            onward.feedback(answer, "accepted", True)
        for choice in answer.choices:
            onward.feedback(choice, "accepted", True)
    outcomes = wait_for(lambda: len(found := service.outcomes()) == 2 and found)
    assert {outcome.inference_id for outcome in outcomes} == {inference_id_of(choice) for choice in answer.choices}


def test_each_chunk_of_several_choices_is_of_one_of_them(service: Service) -> None:
    """Their `id` is of all choices together, and feedback that names it is refused for good."""
    usage: Any = {"stream_options": {"include_usage": True}}
    client = service.client()
    for several in (
        client.completions.create(model=MODEL, prompt="x", n=2, stream=True, **usage),
        client.chat.completions.create(model=MODEL, messages=HI, n=2, stream=True, **usage),  # type: ignore[call-overload]
    ):
        *chunks, last = several
        named = {(chunk.choices[0].index, inference_id_of(chunk)) for chunk in chunks}
        assert sorted(index for index, _ in named) == [0, 1]
        assert all(service.turn(inference_id).inference_id == inference_id for _, inference_id in named)
        with pytest.raises(ValueError, match="name one of its choices"):
            inference_id_of(last)
    *chunks, before, last = client.completions.create(model=MODEL, prompt="x", stream=True, **usage)
    assert not any("onward" in (chunk.choices[0].model_extra or {}) for chunk in chunks), "its id says it"
    assert len({inference_id_of(chunk) for chunk in (*chunks, before, last)}) == 1


def test_feedback_is_amended_and_withdrawn_in_order(service: Service) -> None:
    with Onward(service.url) as onward:
        session = onward.session()
        answer = session.openai().completions.create(model=MODEL, prompt="x")
        first = onward.feedback(answer, "edited", final_text="hello you")
        second = onward.feedback(answer, "edited", 0.5, supersedes=first)
        of_session = onward.session_feedback(session, "rating", 1)
        onward.withdraw(of_session)
        assert onward.flush(WAIT_S) == 0
        assert onward.refused() == []
    for feedback_id, status in ((first, "superseded"), (second, "recorded"), (of_session, "withdrawn")):
        path = f"/v1/feedback/{feedback_id}"
        wait_for(lambda path=path, status=status: service.get(path).json().get("status") == status, f"{path} {status}")


def test_what_the_service_refuses_is_told_and_holds_up_nothing(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = []
    with Onward(service.url, queue=tmp_path / "queue.db", on_refused=told.append) as onward:
        answer = onward.session().openai().completions.create(model=MODEL, prompt="x")
        wrong = onward.feedback(answer, "no_such_metric", True)
        right = onward.feedback(answer, "accepted", True)
        assert onward.flush(WAIT_S) == 0
        (refusal,) = onward.refused()
    assert told == [refusal]
    assert (refusal.request.request_id, refusal.status) == (wrong, 400)
    assert "metric_name: 'no_such_metric'" in refusal.why
    assert wrong in caplog.text
    assert [outcome.outcome_id for outcome in wait_for(service.outcomes)] == [right]
    with Onward(service.url, queue=tmp_path / "queue.db") as again:
        assert again.refused() == [refusal]


def test_a_service_that_cannot_take_it_now_is_asked_again(service: Service) -> None:
    with Onward(service.url) as onward:
        answer = onward.session().openai().completions.create(model=MODEL, prompt="x")
        service.log.broken = True
        feedback_id = onward.feedback(answer, "accepted", True)
        wait_for(lambda: onward.problem)
        assert onward.queued == 1
        assert "the disk is full" in (onward.problem or "")
        service.log.broken = False
        assert onward.flush(WAIT_S) == 0
        wait_for(lambda: onward.problem is None)  # a moment after the queue is empty
    assert [outcome.outcome_id for outcome in wait_for(service.outcomes)] == [feedback_id]


def test_another_program_at_the_address_refuses_nothing(service: Service) -> None:
    """Its answers say nothing about feedback, which waits until the URL is right."""
    with Onward(f"{service.url}/elsewhere", close_timeout_s=0) as onward:
        onward.feedback("0198d2a0-0000-7000-8000-000000000000", "accepted", True)
        wait_for(lambda: onward.problem)
        assert onward.queued == 1
        assert onward.refused() == []
        assert "404" in (onward.problem or "")


def test_a_full_queue_refuses_and_drops_nothing(tmp_path: Path) -> None:
    with Onward("http://127.0.0.1:9", queue=tmp_path / "q.db", queue_entries=2, close_timeout_s=0) as onward:
        for _ in range(2):
            onward.feedback("i", "accepted", True)
        with pytest.raises(QueueFull, match="2 requests wait"):
            onward.feedback("i", "accepted", True)
        assert onward.queued == 2


def test_what_is_lost_with_the_memory_is_said(caplog: pytest.LogCaptureFixture) -> None:
    onward = Onward("http://127.0.0.1:9", close_timeout_s=0)
    onward.feedback("i", "accepted", True)
    with caplog.at_level(logging.ERROR):
        assert onward.close() == 1
    assert "1 requests with feedback are lost" in caplog.text
    assert onward.close() == 0


def test_outcomes_by_name(service: Service) -> None:
    with Onward(f"{service.url}/v1/") as onward:
        assert onward.outcomes()["survived_1h"]["measure"] == "survived"
    with Onward("http://127.0.0.1:9") as nobody, pytest.raises(Unreachable):
        nobody.outcomes()


def test_bad_calls_are_refused_before_they_are_queued() -> None:
    with pytest.raises(ValueError, match="must begin with http"):
        Onward("localhost:8700")
    with Onward("http://127.0.0.1:9", close_timeout_s=0) as onward:
        for wrong in ({"value": True, "diff": "x"}, {}):
            with pytest.raises(ValueError, match="give a value, or one of"):
                onward.feedback("i", "accepted", **wrong)
        with pytest.raises(ValueError, match="no answer of the service"):
            onward.feedback(object(), "accepted", True)
        with pytest.raises(ValueError, match="JSON"):
            onward.feedback("i", "accepted", float("nan"))
        assert onward.queued == 0


def test_a_session_and_feedback_may_have_slashes_in_their_ids(service: Service) -> None:
    with Onward(service.url) as onward:
        session = onward.session(session_id="team/window:1")
        answer = session.openai().completions.create(model=MODEL, prompt="x")
        said = {"inference_id": inference_id_of(answer), "metric_name": "accepted", "value": True}
        assert service.post("/v1/feedback", {**said, "feedback_id": "plugin/7"}).status_code == 200
        onward.withdraw("plugin/7")
        assert (onward.flush(WAIT_S), onward.refused()) == (0, [])


def test_the_same_with_an_event_loop(service: Service, tmp_path: Path) -> None:
    async def work() -> tuple[str, str, int]:
        async with AsyncOnward(service.url, queue=tmp_path / "queue.db") as onward:
            session = onward.session(learn=False)
            async with session.openai() as client:
                answer = await client.completions.create(model=MODEL, prompt="x")
            service.log.broken = True
            feedback_id = await onward.feedback(answer, "accepted", True)
            while onward.problem is None:  # noqa: ASYNC110 - the service's answer, not an event of this loop
                await asyncio.sleep(0.01)
            service.log.broken = False
            await onward.feedback(answer, "no_such_metric", True)
            assert await onward.flush(WAIT_S) == 0
            assert [refusal.status for refusal in await onward.refused()] == [400]
            assert "accepted" in await onward.outcomes()
            return feedback_id, inference_id_of(answer), await onward.queued()

    feedback_id, inference_id, left = asyncio.run(work())
    assert left == 0
    assert [(o.outcome_id, o.inference_id) for o in wait_for(service.outcomes)] == [(feedback_id, inference_id)]
    assert not service.turn(inference_id).learn


def test_a_wrong_key_is_said_and_loses_nothing(tmp_path: Path) -> None:
    keys = [{"key": "right-key-right-key", "namespace": "default", "scopes": ["chat", "feedback"]}]
    queue = tmp_path / "queue.db"
    with serve(tmp_path / "service", keys=keys) as service:
        with Onward(service.url, api_key="right-key-right-key") as onward:
            answer = onward.session().openai().completions.create(model=MODEL, prompt="x")
        with Onward(service.url, api_key="wrong", queue=queue, close_timeout_s=0.2) as onward:
            onward.feedback(answer, "accepted", True)
            wait_for(lambda: onward.problem)
            assert "this API key is not known" in (onward.problem or "")
        with Onward(service.url, api_key="wrong") as onward, pytest.raises(RequestRefused):
            onward.outcomes()
        with Onward(service.url, api_key="right-key-right-key", queue=queue) as onward:
            assert onward.flush(WAIT_S) == 0
        assert wait_for(service.outcomes)


def test_answers_of_other_protocols_are_named_alike(service: Service) -> None:
    with Onward(service.url) as onward:
        session = onward.session()
        client = session.openai()
        answer = client.responses.create(model=MODEL, input="hi")
        onward.feedback(answer, "accepted", True)
        events = list(client.responses.create(model=MODEL, input="hi", stream=True))
        assert inference_id_of(events[0]) == inference_id_of(events[-1]) == inference_id_of(events[-1].model_dump())
    (outcome,) = wait_for(service.outcomes)
    assert service.turn(outcome.inference_id or "").session_id == session.session_id
