"""Retold histories, clients' own requests, hints and retries, where they must not be believed."""

from typing import Any

from api_harness import Service
from scripted_policy import says

from core.events import Completion

LONG = "It greets whoever calls it, and returns the number 1."


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def ask(service: Service, *messages: Any, **options: Any) -> Completion:
    answer = service.chat(*messages, **options)
    assert answer.status_code == 200, answer.text
    return service.turn(answer.headers["x-onward-inference-id"])


def test_a_changed_system_prompt_continues_the_session_by_words_alone(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("clean"), user("What does it do?\n\nBe brief."))
    second = ask(service, system("1 file changed"), user("What does it do?"), assistant(f"{LONG}\n"), user("And?"))
    assert (second.session_id, second.parent_id) == (first.session_id, first.inference_id)
    rendered = service.services.renderer.render(
        [system("1 file changed"), user("What does it do?"), assistant(f"{LONG}\n"), user("And?")], ()
    )
    assert second.prompt_token_ids == rendered


def test_words_continue_no_session_of_another_user(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("a"), user("What does it do?"), user="ada")
    second = ask(service, system("b"), user("What does it do?"), assistant(LONG), user("And?"), user="bob")
    assert second.parent_id is None
    assert second.session_id != first.session_id


def test_the_same_answer_to_another_question_is_no_mark(service: Service) -> None:
    service.policy.scripts += [says(LONG), says("two")]
    first = ask(service, system("a"), user("What does it do?"))
    second = ask(service, system("b"), user("Is it any good, then?"), assistant(LONG), user("And?"))
    assert second.parent_id is None
    assert second.session_id != first.session_id


def test_a_short_answer_is_a_mark_only_in_its_session(service: Service) -> None:
    retold = system("b"), user("a"), assistant("one"), user("c")
    service.policy.scripts += [says("one"), says("two"), says("one"), says("two")]
    ask(service, system("a"), user("a"))
    assert ask(service, *retold).parent_id is None
    given = ask(service, system("a"), user("a"), headers={"session_id": "own-1"})
    assert given.session_id == "own-1"
    assert ask(service, *retold, headers={"session_id": "own-1"}).parent_id == given.inference_id


def test_a_hint_gives_way_to_the_history(service: Service) -> None:
    """A conversation that was resumed under another id goes on in its session."""
    service.policy.scripts += [says("one"), says("two")]
    first = ask(service, "a", headers={"thread-id": "t1"})
    second = ask(service, user("a"), assistant("one"), user("b"), headers={"thread-id": "t2"})
    assert (first.session_id, second.session_id) == ("t1", "t1")
    assert second.parent_id == first.inference_id


def test_what_a_client_says_of_a_turn_is_believed_before_its_prompt(service: Service) -> None:
    title = system("You are a title generator. You output ONLY a thread title."), user("hi")
    assert ask(service, *title).purpose == "side"
    assert ask(service, *title, turn_type="main").purpose == "turn"
    assert ask(service, system("You are an editor. You are a title generator."), user("hi")).purpose == "turn"


def test_a_retry_shares_session_and_group_with_the_first_try(service: Service) -> None:
    first = ask(service, "a", headers={"x-stainless-retry-count": "0"})
    again = ask(service, "a", headers={"x-stainless-retry-count": "1"})
    other = ask(service, "a")
    assert (again.session_id, again.group_id, again.parent_id) == (first.session_id, first.group_id, None)
    assert other.session_id != first.session_id
    assert other.group_id != first.group_id
