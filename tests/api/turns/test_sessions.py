"""Sessions, given or inferred: trees that edits and undo branch, and prompts that continue their parents' tokens."""

from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve, wait_for
from scripted_policy import says

from api.operator import session_routes
from core.events import Completion, SessionEnded, Topic


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def ask(service: Service, *messages: Any, **options: Any) -> Completion:
    answer = service.chat(*messages, **options)
    assert answer.status_code == 200, answer.text
    return service.turn(answer.headers["x-onward-inference-id"])


def continues(child: Completion, parent: Completion) -> bool:
    history = parent.prompt_token_ids + parent.token_ids
    return child.prompt_token_ids[: len(history)] == history


def branches(service: Service) -> dict[str, float]:
    lines = service.get("/metrics").text.splitlines()
    found = (line.split(" ") for line in lines if line.startswith("onward_session_branches_total{"))
    return {name.split('"')[1]: float(value) for name, value in found}


def test_a_conversation_is_one_session(service: Service) -> None:
    service.policy.scripts += [says("one"), says("two"), says("three")]
    first = ask(service, "a")
    second = ask(service, user("a"), assistant("one"), user("b"))
    third = ask(service, user("a"), assistant("one"), user("b"), assistant("two"), user("c"))
    assert {first.session_id} == {second.session_id, third.session_id}
    assert [turn.turn_index for turn in (first, second, third)] == [0, 1, 2]
    assert [turn.parent_id for turn in (first, second, third)] == [None, first.inference_id, second.inference_id]
    assert continues(second, first)
    assert continues(third, second)
    assert [request.cache_key for request in service.policy.requests] == [first.session_id] * 3


def test_the_same_words_from_another_user_or_tenant_are_another_session(service: Service) -> None:
    first = ask(service, "a", user="ada")
    second = ask(service, user("a"), assistant("hello"), user("b"), user="bob")
    assert second.session_id != first.session_id
    assert second.parent_id is None
    third = ask(service, user("a"), assistant("hello"), user("b"), user="ada")
    assert third.parent_id == first.inference_id


def test_what_the_engine_computed_is_shared_with_the_same_speaker_alone(tmp_path: Path) -> None:
    bound = [{"key": f"key-of-{name}", "namespace": "ours", "user": name} for name in ("ada", "bob")]
    free = [{"key": f"key-of-{name}", "namespace": name, "name": name} for name in ("team", "crew")]
    with serve(tmp_path / "service", keys=[*bound, *free], namespaces={"crew": {"shares_prefixes": True}}) as service:
        asked = [("ada", None), ("ada", "ada"), ("bob", None)]
        asked += [(name, who) for name in ("team", "crew") for who in ("ada", "bob", None)]
        for name, who in asked:
            service.chat("hi", headers={"authorization": f"Bearer key-of-{name}"}, **({"user": who} if who else {}))
        ada, named, bob, *others = (request.cache_scope for request in service.policy.requests)
        assert ada == named
        assert None not in (ada, bob, *others)
        assert len({ada, bob, *others[:3]}) == 5, "a user, or else the key"
        assert len({*others[3:]}) == 1, "all of the namespace, as its operator wants it"
        assert not {ada, bob, *others[:3]} & {*others[3:]}


def test_undo_and_regenerate_branch_the_tree(service: Service) -> None:
    before = branches(service)
    service.policy.scripts += [says("one"), says("two"), says("other two"), says("edited")]
    first = ask(service, "a")
    second = ask(service, user("a"), assistant("one"), user("b"))
    again = ask(service, user("a"), assistant("one"), user("b"))
    edited = ask(service, user("a"), assistant("one"), user("B"))
    assert second.parent_id == again.parent_id == edited.parent_id == first.inference_id
    assert second.turn_index == again.turn_index == edited.turn_index == 1
    grown = {how: count - before.get(how, 0) for how, count in branches(service).items()}
    assert (grown["root"], grown["continued"], grown["branch"]) == (1, 1, 2)


def test_a_rewritten_answer_continues_the_turn_before_it(service: Service) -> None:
    """The client edits the second answer, so the longest known history ends with the first."""
    service.policy.scripts += [says("one"), says("two"), says("three")]
    first = ask(service, "a")
    ask(service, user("a"), assistant("one"), user("b"))
    third = ask(service, user("a"), assistant("one"), user("b"), assistant("TWO, edited"), user("c"))
    assert third.parent_id == first.inference_id
    assert continues(third, first)


def test_a_history_that_nobody_knows_is_rendered_afresh(service: Service) -> None:
    before = branches(service).get("rewritten", 0)
    turn = ask(service, user("a"), assistant("never said"), user("b"))
    assert (turn.parent_id, turn.turn_index) == (None, 1)
    assert branches(service)["rewritten"] == before + 1


def test_other_tools_mean_other_tokens(service: Service) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    service.policy.scripts += [says("one"), says("two")]
    first = ask(service, "a", session_id="s1")
    turn = ask(service, user("a"), assistant("one"), user("b"), session_id="s1", tools=[tool])
    assert (turn.session_id, turn.parent_id) == ("s1", first.inference_id)
    assert not continues(turn, first)


def test_a_session_given_by_the_client_is_looked_at_alone(service: Service) -> None:
    service.policy.scripts += [says("same"), says("same"), says("x"), says("y"), says("z")]
    first = ask(service, "a", headers={"X-Session-Id": "s1"})
    other = ask(service, "a", session_id="s2")
    assert (first.session_id, other.session_id) == ("s1", "s2")
    follow = user("a"), assistant("same"), user("b")
    assert ask(service, *follow, session_id="s1").parent_id == first.inference_id
    assert ask(service, *follow, session_id="s2").parent_id == other.inference_id
    stranger = ask(service, *follow, session_id="s3")
    assert (stranger.session_id, stranger.parent_id) == ("s3", None)


def test_losing_the_cache_loses_nothing(service: Service) -> None:
    """The parent is found in the store, for given and for inferred sessions alike."""
    service.policy.scripts += [says("one"), says("two"), says("three"), says("four")]
    first, given = ask(service, "a"), ask(service, "b", session_id="s1")
    service.live_state.__init__()  # type: ignore[misc]
    second = ask(service, user("a"), assistant("one"), user("b"))
    assert (second.parent_id, second.turn_index) == (first.inference_id, 1)
    assert continues(second, first)
    third = ask(service, user("b"), assistant("two"), user("c"), session_id="s1")
    assert third.parent_id == given.inference_id


def test_text_parts_and_developer_messages_are_what_they_mean(service: Service) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    first = ask(service, {"role": "developer", "content": "be kind"}, {"role": "user", "content": parts})
    assert first.messages[1]["content"] == parts
    second = ask(service, {"role": "system", "content": "be kind"}, user("a\nb"), assistant("hello"), user("c"))
    assert second.parent_id == first.inference_id


def test_the_tree_with_outcomes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.policy.scripts += [says("one"), says("two", versions=[2, 2, 2, 2])]
    first = ask(service, "a", session_id="s1")
    second = ask(service, user("a"), assistant("one"), user("b"), session_id="s1")
    said = service.post("/v1/feedback", {"inference_id": second.inference_id, "metric_name": "accepted", "value": True})
    service.post("/v1/feedback", {"session_id": "s1", "metric_name": "rating", "value": 0.5})
    wait_for(lambda: len(service.outcomes()) == 2)
    tree = service.get("/v1/sessions/s1").json()
    assert [turn["inference_id"] for turn in tree["turns"]] == [first.inference_id, second.inference_id]
    assert tree["turns"][1]["parent_id"] == first.inference_id
    assert tree["turns"][1]["policy_versions"] == [{"start": 0, "end": 4, "version": 2}]
    assert tree["turns"][1]["outcomes"][0]["outcome_id"] == said.json()["feedback_id"]
    assert tree["turns"][1]["rewards"] == []
    assert [outcome["name"] for outcome in tree["outcomes"]] == ["rating"]
    assert tree["complete"] is True
    monkeypatch.setattr(session_routes, "_MOST_TURNS", 1)
    end = service.get("/v1/sessions/s1").json()
    assert (end["turns"], end["complete"]) == (tree["turns"][1:], False)


def test_the_end_of_a_session_is_logged(service: Service) -> None:
    ask(service, "a", session_id="s1")
    assert service.post("/v1/sessions/s1/end", {}).json() == {"session_id": "s1", "status": "ended"}
    consumer = service.services.log.consumer("test", [Topic.TURNS])
    ended = [record.event for record in consumer.poll(10, 1) if isinstance(record.event, SessionEnded)]
    consumer.close()
    assert [event.session_id for event in ended] == ["s1"]
    for answer in (service.post("/v1/sessions/unknown/end", {}), service.get("/v1/sessions/unknown")):
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "session_id"


def test_offsets_are_places_in_the_text_also_of_parts_of_a_character(service: Service) -> None:
    service.policy.scripts += [says("né日b"), says("né日b")]
    client = service.client()
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=20, logprobs=1)
    assert answer.choices[0].text == "né日b"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 1, 1, 2, 2, 2, 3]
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=20, logprobs=1, stream=True)
    told = [chunk.choices[0].logprobs.text_offset for chunk in stream if chunk.choices and chunk.choices[0].logprobs]
    assert [offset for offsets in told for offset in offsets or ()] == [0, 1, 1, 2, 2, 2, 3]


def test_suggestions_are_captured_alike(service: Service) -> None:
    service.policy.scripts += [says("x + y"), says(""), says("streamed")]
    client = service.client()
    answer = client.completions.create(model=MODEL, prompt="return ", suffix="\n", max_tokens=20, logprobs=2)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("x + y", "stop")
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == list("x + y")
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    turn = service.turn(answer.model_extra["onward"]["inference_id"])  # type: ignore[index]
    assert (turn.purpose, turn.workload, turn.trainable) == ("suggestion", "suggestion", True)
    assert turn.messages == ({"role": "prompt", "content": "return ", "suffix": "\n"},)
    assert turn.prompt_token_ids == service.services.renderer.render_text("return ", "\n")

    silent = client.completions.create(model=MODEL, prompt="return ")
    turn = service.turn(silent.model_extra["onward"]["inference_id"])  # type: ignore[index]
    assert (silent.choices[0].text, len(turn.token_ids), turn.trainable, turn.finish_reason) == ("", 1, True, "stop")

    chunks = list(client.completions.create(model=MODEL, prompt="x", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "streamed"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].model_extra["onward"]["logged"] is True  # type: ignore[index]
