"""An erasure takes the dead letters that name what is erased, and leaves those of others, on each database."""

import json
from datetime import timedelta

import made_events
from made_events import NOW

from core.codec import encode
from core.events import DeadLetter, Topic
from core.ids import Namespace, SessionId
from core.ports import Store

ACME, GLOBEX = Namespace("acme"), Namespace("globex")
SESSION = SessionId("1")


def turn_of(namespace: Namespace, session: str, said: str = "customer-1") -> bytes:
    messages = ({"role": "user", "content": said},)
    return encode(made_events.completion(SessionId(session), namespace=namespace, messages=messages))


LETTERS = {
    "a turn of it that cannot be used": turn_of(ACME, "1"),
    "a turn of it that is cut off": turn_of(ACME, "1")[:-20],
    "one of it, in JSON, that is cut off": b'{"namespace": "acme", "session": "1", "said": "wor',
    "what says no namespace": b"\xc1\xa7session\xa11 words",
    "another organisation's, of that name": turn_of(GLOBEX, "1"),
    "another organisation's, with the id in its words": turn_of(GLOBEX, "7"),
    "another organisation's, cut off": turn_of(GLOBEX, "1")[:-20],
    "another organisation's, in JSON": json.dumps({"namespace": "globex", "session": "1"}).encode(),
    "another session's": turn_of(ACME, "11"),
    "another session's, with the id in its words": turn_of(ACME, "7", "1"),
    "words that hold the id, and say nothing else": b"\xc1 customer-1",
}
OF_IT = list(LETTERS)[:4]


def test_letters_of_what_is_erased_go_and_those_of_others_stay(store: Store) -> None:
    letters = [
        DeadLetter(topic=Topic.TURNS, partition=0, offset=offset, reason=name, raw=raw, at=NOW)
        for offset, (name, raw) in enumerate(LETTERS.items())
    ]
    with store.work() as work:
        work.dead_letters.put(letters)
        counts, _ = work.sweeps.redact(ACME, [SESSION], NOW + timedelta(seconds=1))
        left = {letter.reason for letter in work.dead_letters.newest(99)}
    assert [name for name in LETTERS if name not in left] == OF_IT
    assert counts == {"dead_letters": len(OF_IT)}
