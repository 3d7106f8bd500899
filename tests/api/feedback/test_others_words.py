"""A key that sees its own alone is not told by rewards what others said of its turns."""

from collections.abc import Callable
from typing import Any

from api_harness import Service, wait_for
from made_events import reward

from core.events import Hint, TextEdit
from core.ids import OutcomeId

KEYS = [
    {"key": f"key-of-{who}", "namespace": "ours", "user": who, "scopes": ("chat", "feedback", *more)}
    for who, more in {"ada": (), "bob": (), "eve": ("read",)}.items()
]


def test_words_and_texts_of_others_are_not_in_what_one_sees_of_a_reward(make_service: Callable[..., Service]) -> None:
    service = make_service(keys=KEYS)
    ada, bob, eve = ({"authorization": f"Bearer {key['key']}"} for key in KEYS)
    turn = service.turn(service.chat("hi", headers=ada).headers["x-onward-inference-id"])
    body = {"inference_id": turn.inference_id, "metric_name": "comment", "value": "too long", "feedback_id": "own"}
    assert service.post("/v1/feedback", body, **ada).status_code == 200
    assert service.post("/v1/feedback", body | {"feedback_id": "theirs"}, **bob).status_code == 404
    (said,) = wait_for(service.outcomes)
    hints = tuple(Hint(start=0, end=1, text=each, outcome_id=OutcomeId(each)) for each in ("own", "theirs"))
    edit = TextEdit(start=0, end=1, token_ids=(65, 66))
    ids = tuple(hint.outcome_id for hint in hints)
    of_turn = {"session_id": turn.session_id, "namespace": turn.namespace}
    of_both = {**of_turn, "hints": hints, "edits": (edit,), "outcome_ids": ids}
    users = (said.user_id, "somebody else's")
    with service.store.work() as work:
        by = ("somebody else's", said.user_id)
        made = [
            reward(turn.inference_id, revision=place, edited_by=user, said_by=users, **of_both)
            for place, user in enumerate(by)
        ]
        work.rewards.put([(0, each) for each in made])
    stories = [f"/v1/{path}/{turn.inference_id}" for path in ("rewards", "turns")]
    for path in (*stories, f"/v1/sessions/{turn.session_id}"):
        theirs, own = rewards(service, path, ada)
        for seen in (theirs, own):
            assert ([hint["text"] for hint in seen["hints"]], seen["said_by"]) == (["own"], [said.user_id])
            assert seen["outcome_ids"] == ["own"]
        assert (theirs["edits"], theirs["edited_by"]) == ([], None)
        assert (own["edits"][0]["token_ids"], own["edited_by"]) == ([65, 66], said.user_id)
        whole, _ = rewards(service, path, eve)
        assert ([hint["text"] for hint in whole["hints"]], len(whole["said_by"])) == (["own", "theirs"], 2)
        assert whole["outcome_ids"] == ["own", "theirs"]
    assert service.get(f"/v1/turns/{turn.inference_id}", **eve).json()["rewards"][0]["edits"][0]["text"] == "AB"


def rewards(service: Service, path: str, who: dict[str, str]) -> list[Any]:
    story = service.get(path, **who).json()
    (about,) = story.get("turns", [story])
    found: list[Any] = about["rewards"]
    return found
