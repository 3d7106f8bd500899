"""Sessions across API replicas: one live state, one store, and prompts that continue the exact tokens."""

import asyncio
import json
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_harness import MODEL, Service, serve_replicas
from byte_renderer import END, ByteRenderer, call_ids, ids
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_policy import Script, says

from api.turns.sessions import remember
from core.events import Completion

TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
RENDERER = ByteRenderer()
Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def continues(child: Completion, parent: Completion) -> bool:
    history = parent.prompt_token_ids + parent.token_ids
    return child.prompt_token_ids[: len(history)] == history and child.parent_id == parent.inference_id


class Replicas:
    """Two applications behind a balancer that never sends two turns in a row to the same one.

    The live state may be lost between any two turns. Each instance has a user of its own, so that it finds no other's
    sessions."""

    def __init__(self, services: list[Service], loses: bool = False) -> None:
        self.services = services
        self.loses = loses
        self.turns: list[Completion] = []
        self._user = uuid.uuid4().hex

    def ask(self, *messages: Message | str, says_: str | Script = "hello", **options: Any) -> Completion:
        service = self.services[len(self.turns) % len(self.services)]
        service.policy.scripts.append(says(says_) if isinstance(says_, str) else says_)
        answer = service.chat(*messages, user=self._user, **options)
        assert answer.status_code == 200, answer.text
        turn = service.turn(answer.headers["x-onward-inference-id"])
        self.turns.append(turn)
        if self.loses:
            self.lose()
        return turn

    def lose(self) -> None:
        """Lose the whole live state; turns that `ask` returned are in the store."""
        self.services[0].live_state.forget()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    with serve_replicas(tmp_path_factory.mktemp("api") / "service", 2) as services:
        for service in services:
            service.policy.context_length = 100_000
        yield services


@pytest.fixture(params=["kept", "lost"])
def replicas(services: list[Service], request: pytest.FixtureRequest) -> Replicas:
    for service in services:
        service.policy.scripts.clear()
    return Replicas(services, loses=request.param == "lost")


@pytest.mark.parametrize("session", ["inferred", "given", "taken over", "given up"])
def test_a_conversation_goes_on_at_another_replica(replicas: Replicas, session: str) -> None:
    said: list[Message] = []
    given_id = f"s-{uuid.uuid4()}"
    for number in range(5):
        session_id = {
            "inferred": None,
            "given": given_id,
            "taken over": replicas.turns[0].session_id if number else None,  # as our answer's header told it
            "given up": given_id if number < 2 else None,
        }[session]
        said.append(user(f"q{number} ü"))
        headers = {"x-session-id": session_id} if session_id else {}
        turn = replicas.ask(*said, says_=f"a{number} €", headers=headers, stream=number % 2 == 0)
        said.append(assistant(f"a{number} €"))
        assert turn.turn_index == number
    first = replicas.turns[0]
    assert {turn.session_id for turn in replicas.turns} == {first.session_id}
    assert first.parent_id is None
    for parent, child in zip(replicas.turns, replicas.turns[1:], strict=False):
        assert continues(child, parent)
        new = (child.prompt_token_ids)[len(parent.prompt_token_ids + parent.token_ids) :]
        assert new == RENDERER.extend((END,), [user(f"q{child.turn_index} ü")])[1:], "and says nothing but what is new"


def test_an_answer_that_was_cut_off_is_closed_and_continued(replicas: Replicas) -> None:
    first = replicas.ask("a", says_="a long answer", max_tokens=6)
    second = replicas.ask(user("a"), assistant("a long"), user("b"))
    assert first.finish_reason == "length"
    assert continues(second, first)


@pytest.mark.parametrize("given_id", [False, True])
def test_edit_undo_and_regenerate_are_branches(replicas: Replicas, given_id: bool) -> None:
    options = {"session_id": f"s-{uuid.uuid4()}"} if given_id else {}

    def ask(*messages: Message, says_: str) -> Completion:
        return replicas.ask(*messages, says_=says_, **options)

    start = user("a"), assistant("one")
    first = ask(user("a"), says_="one")
    second = ask(*start, user("b"), says_="two")
    again = ask(*start, user("b"), says_="other two")
    edited = ask(*start, user("B"), says_="edited two")
    for branch in (second, again, edited):
        assert continues(branch, first)
        assert (branch.session_id, branch.turn_index) == (first.session_id, 1)
    assert second.prompt_token_ids == again.prompt_token_ids != edited.prompt_token_ids
    for parent, asked, text in ((second, "b", "two"), (again, "b", "other two"), (edited, "B", "edited two")):
        after = ask(*start, user(asked), assistant(text), user("c"), says_="three")
        assert continues(after, parent), "each branch goes on where it was"
    fresh = ask(user("A"), says_="one")
    assert (fresh.parent_id, fresh.turn_index) == (None, 0)
    assert (fresh.session_id == first.session_id) == given_id


@pytest.mark.parametrize("given_id", [False, True])
def test_a_rewritten_history_is_rendered_afresh_and_starts_a_branch(replicas: Replicas, given_id: bool) -> None:
    options = {"session_id": f"s-{uuid.uuid4()}"} if given_id else {}
    first = replicas.ask("a", says_="one", **options)
    said = [user("summary of what was said"), assistant("never said"), user("b")]
    rewritten = replicas.ask(*said, says_="two", **options)
    assert (rewritten.parent_id, rewritten.turn_index) == (None, 1)
    assert rewritten.prompt_token_ids == RENDERER.render(said, ())
    assert (rewritten.session_id == first.session_id) == given_id
    after = replicas.ask(*said, assistant("two"), user("c"), **options)
    assert continues(after, rewritten)
    assert continues(replicas.ask(user("a"), assistant("one"), user("b"), **options), first)


def test_an_answer_that_the_client_rewrote_is_a_branch_after_the_turn_before(replicas: Replicas) -> None:
    first = replicas.ask("a", says_="one")
    said = [user("a"), assistant("one"), user("b")]
    replicas.ask(*said, says_="two")
    third = replicas.ask(*said, assistant("TWO"), user("c"), says_="three")
    assert continues(third, first)
    assert third.prompt_token_ids == RENDERER.extend(
        first.prompt_token_ids + first.token_ids, [user("b"), assistant("TWO"), user("c")]
    )
    assert continues(replicas.ask(*said, assistant("TWO"), user("c"), assistant("three"), user("d")), third)


@pytest.mark.parametrize("given_id", [False, True])
def test_a_cache_that_kept_the_beginning_alone_hides_nothing(services: list[Service], given_id: bool) -> None:
    """The least recently used entry is evicted first, and it may be the longer prefix."""
    replicas = Replicas(services)
    options = {"session_id": f"s-{uuid.uuid4()}"} if given_id else {}
    first = replicas.ask("a", says_="one", **options)
    second = replicas.ask(user("a"), assistant("one"), user("b"), says_="two", **options)
    replicas.lose()
    asyncio.run(remember(services[0].services, first))
    third = replicas.ask(user("a"), assistant("one"), user("b"), assistant("two"), user("c"), **options)
    assert continues(third, second)


def test_without_the_store_the_longest_that_the_cache_knows_is_continued(services: list[Service]) -> None:
    replicas = Replicas(services)
    first = replicas.ask("a", says_="one")
    services[0].store.broken = True
    try:
        rewritten = replicas.ask(user("a"), assistant("one"), user("b"), assistant("never"), user("c"))
        replicas.lose()
        unknown = replicas.ask(user("a"), assistant("one"), user("b"))
    finally:
        services[0].store.broken = False
    assert continues(rewritten, first)
    assert (unknown.parent_id, unknown.turn_index) == (None, 1)


def test_of_two_replicas_at_once_one_continues_and_one_branches(services: list[Service]) -> None:
    replicas = Replicas(services)
    counted = branches(services[0])
    first = replicas.ask("a", says_="one", session_id=f"s-{uuid.uuid4()}")
    said = user("a"), assistant("one"), user("b")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda s: s.chat(*said, session_id=first.session_id, user=replicas._user), services))
    found = [services[0].turn(answer.headers["x-onward-inference-id"]) for answer in answers]
    assert all(continues(turn, first) for turn in found)
    grown = {how: count - counted.get(how, 0) for how, count in branches(services[0]).items()}
    assert (grown["continued"], grown["branch"]) == (1, 1)


def branches(service: Service) -> dict[str, float]:
    lines = service.get("/metrics").text.splitlines()
    found = (line.split(" ") for line in lines if line.startswith("onward_session_branches_total{"))
    return {name.split('"')[1]: float(value) for name, value in found}


def calling(text: str, **arguments: Any) -> Script:
    return Script((*ids(text), *call_ids("read_file", arguments), END), chunk_tokens=3)


ECHOES: tuple[Message, ...] = (
    {"content": ""},
    {"content": None},
    {"content": []},
    {"content": [{"type": "text", "text": ""}]},
    {},
    {"content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None},
    {"content": None, "refusal": None, "annotations": None, "parsed": None},
)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_without_words_is_found_however_it_is_echoed(replicas: Replicas, stream: bool) -> None:
    first = replicas.ask("look", says_=calling("", path="ü.py"), tools=TOOLS, stream=stream)
    (call,) = first.tool_calls
    called = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    result = {"role": "tool", "tool_call_id": call.id, "content": "empty"}
    for echo in ECHOES:
        said = {"role": "assistant", "tool_calls": [called], **echo}
        assert continues(replicas.ask(user("look"), said, result, tools=TOOLS), first), echo


def test_arguments_that_were_read_and_written_again_are_the_same_call(replicas: Replicas) -> None:
    first = replicas.ask("look", says_=calling("Let me see. ", path="ü.py", line=3, all=True), tools=TOOLS)
    (call,) = first.tool_calls
    read = json.loads(call.arguments)

    def again(arguments: str) -> Completion:
        function = {"name": call.name, "arguments": arguments}
        said = {**assistant("Let me see. "), "tool_calls": [{"id": call.id, "function": function}]}
        return replicas.ask(
            user("look"), said, {"role": "tool", "tool_call_id": call.id, "content": "empty"}, tools=TOOLS
        )

    same: tuple[Message, ...] = (
        {"separators": (",", ":")},
        {"indent": 2},
        {"ensure_ascii": False},
        {"sort_keys": True},
    )
    for way in same:
        assert continues(again(json.dumps(read, **way)), first), way
    for other in ('{"path": "u.py", "line": 3, "all": true}', call.arguments[:-1], "[" * 50_000):
        edited = again(other)
        assert (edited.parent_id, edited.turn_index) == (None, 1)


@pytest.mark.parametrize("text", ["", "Let me see. "])
@pytest.mark.parametrize("dumped", [False, True])
def test_what_the_official_client_put_together_of_a_stream_is_the_answer(
    services: list[Service], text: str, dumped: bool
) -> None:
    here, there = services
    here.policy.scripts.append(calling(text, path="ü.py"))
    if text:
        here.policy.scripts[-1].token_ids = (*ids(text), *call_ids("read_file", {}), *call_ids("read_file", {}), END)
    question: Any = {"role": "user", "content": "look"}
    who = uuid.uuid4().hex
    with here.client().chat.completions.stream(model=MODEL, messages=[question], tools=TOOLS, user=who) as stream:
        whole = stream.get_final_completion()
    message = whole.choices[0].message
    assert message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "empty"} for call in message.tool_calls]
    echoed: Any = message.model_dump() if dumped else message
    again = there.client().chat.completions.create(
        model=MODEL, messages=[question, echoed, *results], tools=TOOLS, user=who
    )
    first = there.turn(whole.id.removeprefix("chatcmpl-"))
    second = there.turn(again.model_extra["onward"]["inference_id"])  # type: ignore[index]
    assert continues(second, first)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 32), words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_whatever_way_a_tree_grows_its_prompts_continue(services: list[Service], seed: int, words: list[str]) -> None:
    """Each turn continues any earlier one, at any replica, with the live state lost now and then."""
    choose = random.Random(seed)
    replicas = Replicas(services)
    histories: list[tuple[Completion | None, list[Message]]] = [(None, [])]
    for number in range(8):
        if choose.random() < 0.3:
            replicas.lose()
        parent, said = choose.choice(histories)
        question = user(f"{number}{choose.choice([*words, ''])}")
        text = f"{choose.choice([*words, ''])}{number}"  # no two answers alike: else either may be the parent
        turn = replicas.ask(*said, question, says_=text)
        if parent is None:
            assert turn.parent_id is None
        else:
            assert continues(turn, parent)
            assert (turn.session_id, turn.turn_index) == (parent.session_id, parent.turn_index + 1)
        histories.append((turn, [*said, question, assistant(text)]))
