"""What a story reads is bounded by bytes, however much was said, and one key's looks leave others room."""

import threading
from collections.abc import Callable
from typing import Any

import made_events
import pytest
from api_harness import Service, wait_for

from api.http import background
from api.operator import rewards, session_routes, turn_routes

KEYS = [
    {"key": f"key-of-{who}", "namespace": "ours", "name": who, "scopes": ("chat", "feedback", "read")}
    for who in ("ada", "eve")
]
ADA, EVE = ({"authorization": f"Bearer {key['key']}"} for key in KEYS)
SIZE = 1 << 16
SAID = 12


def test_of_what_was_said_and_decided_a_story_reads_so_many_bytes(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds at any size, so here it is small: rewards of twelve megabytes took a dozen seconds to show."""
    for routes in (rewards, turn_routes, session_routes):
        monkeypatch.setattr(routes, "MOST_BYTES", 8 * SIZE)
    service = make_service()
    turn = service.turn(service.chat("hi").headers["x-onward-inference-id"])
    outcomes = [made_events.outcome(turn, outcome_id=f"o{place}", evidence="x" * SIZE) for place in range(SAID)]
    decided = [
        made_events.reward(turn.inference_id, session_id=turn.session_id, namespace=turn.namespace, revision=place,
                           why="x" * SIZE)
        for place in range(SAID)
    ]  # fmt: skip
    with service.store.work() as work:
        work.outcomes.put(outcomes)
        work.rewards.put([(0, each) for each in decided])
    for path in (f"rewards/{turn.inference_id}", f"turns/{turn.inference_id}", f"sessions/{turn.session_id}"):
        story = service.get(f"/v1/{path}").json()
        (shown,) = story.get("turns", [story])
        assert 1 < len(shown["outcomes"]) < 9
        assert [each["revision"] for each in shown["rewards"]][-1] == SAID - 1
        assert 1 < len(shown["rewards"]) < 9


def test_whoever_looks_at_much_leaves_others_room(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, gate, story = make_service(keys=KEYS), threading.Event(), turn_routes._story
    turn = service.turn(service.chat("hi", headers=ADA).headers["x-onward-inference-id"])
    held, answers = list[int](), list[int]()

    def slow(view: Any, identity: Any, *more: Any) -> Any:
        if identity.key_id == "eve":
            held.append(1)
            gate.wait()
        return story(view, identity, *more)

    def look(who: dict[str, str]) -> int:
        return service.get(f"/v1/turns/{turn.inference_id}", **who).status_code

    monkeypatch.setattr(turn_routes, "_story", slow)
    hers = [threading.Thread(target=lambda: answers.append(look(EVE))) for _ in range(2 * background._THREADS)]
    try:
        for each in hers:
            each.start()
        wait_for(lambda: len(held) >= background._OF_A_CALLER, "her looks")
        assert look(ADA) == 200
        assert len(held) == background._OF_A_CALLER
    finally:
        gate.set()
        for each in hers:
            each.join()
    assert answers == [200] * len(hers)
