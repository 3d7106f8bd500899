"""One value has one placeholder, placeholders stay as they are, and values come back to the character."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve
from hypothesis import given
from hypothesis import strategies as st
from made_events import NOW
from ready_stores import open_ready

from api.redaction.finder import Finder
from api.redaction.placeholders import Restorer, Scope, restored
from api.redaction.places import RedactedTexts
from api.redaction.policies import Redactors, SessionValues
from api.redaction.redaction import Redaction
from core.errors import ConfigError
from core.ids import Namespace, SessionId
from core.operations.keys import KeyWish, make_key
from core.settings import PrivacySettings

FINDER = Finder(("secrets", "pii"))
KEY = "ghp_" + "Zk3mQ9vT2xLr8Wn4Yb6Hc1Jd5Fs7Gp0AeUiO"
PARTS = st.sampled_from(
    [KEY, "anna.zander@quarz-hamm.de", "<EMAIL_abcdef>", "<", "<SECRET_", "Katharina Vogel", "password = 'x9$Kk2mm'",
     "AKIAQ3EGRZL5T7WNXV2M", "\n", " and ", "ü", "\u200b", "def f(x):", "+49 2381 5550172", '\\n"', "a"]
)  # fmt: skip
TEXTS = st.lists(PARTS, max_size=8).map("".join)


def begin(speaker: str | None = "ada") -> Redaction:
    return Redaction(FINDER, Scope(b"k" * 32, "ours", speaker))


@given(st.lists(TEXTS, max_size=4))
def test_what_is_redacted_is_restored_and_stays_redacted(texts: list[str]) -> None:
    redaction = begin()
    redacted = redaction.all(texts)
    assert [redaction.restored(text) for text in redacted] == texts
    assert begin().all(redacted) == redacted


@given(st.lists(TEXTS, max_size=4), TEXTS)
def test_what_comes_later_changes_nothing_before(texts: list[str], later: str) -> None:
    assert begin().all([*texts, " ", later])[: len(texts)] == begin().all([*texts, " "])[: len(texts)]


@given(TEXTS, st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_stream_says_what_a_whole_answer_says(text: str, sizes: list[int]) -> None:
    redaction = begin()
    answer = redaction.text(text) + " <SECRET_zzzzzz> <EMA"
    restorer, said, place = Restorer(redaction.values), "", 0
    while place < len(answer):
        size = sizes[place % len(sizes)]
        said += restorer.feed(answer[place : place + size])
        place += size
    assert said + restorer.finish() == restored(answer, redaction.values)


def test_a_value_that_was_found_once_is_replaced_wherever_it_stands_later() -> None:
    redaction = begin()
    first, second, third = redaction.all(
        ["bare kk9$Wasser", "password = 'kk9$Wasser'", "bare kk9$Wasser, xkk9$Wasserx"]
    )
    assert first == "bare kk9$Wasser"  # nothing shows it yet
    (placeholder,) = redaction.values
    assert (second, third) == (f"password = '{placeholder}'", f"bare {placeholder}, x{placeholder}x")


def test_a_secret_that_is_split_over_two_messages_is_found() -> None:
    for place in range(3, len(KEY) - 3):
        redaction = begin()
        first, second = redaction.all([f"here: {KEY[:place]}", f"{KEY[place:]} rest"])
        assert KEY[:place] not in first
        assert KEY[place:] not in second
        assert (redaction.restored(first), redaction.restored(second)) == (
            f"here: {KEY[:place]}",
            f"{KEY[place:]} rest",
        )


def test_placeholders_tell_nothing_and_cannot_be_made_by_others() -> None:
    ours, eves = begin("ada").text(KEY), begin("eve").text(KEY)
    other_key = Redaction(FINDER, Scope(b"x" * 32, "ours", "ada")).text(KEY)
    other_namespace = Redaction(FINDER, Scope(b"k" * 32, "theirs", "ada")).text(KEY)
    assert len({ours, eves, other_key, other_namespace}) == 4
    assert begin("ada").text(KEY) == ours


def test_arguments_are_redacted_as_they_read() -> None:
    class Call:
        arguments = json.dumps({KEY: {"a": [f"x\n{KEY}", 1, None]}, "anna.zander@quarz-hamm.de": "ü"})

    call, places, redaction = Call(), RedactedTexts(), begin()
    places.add_json(call, "arguments")
    places.redact(redaction)
    assert KEY not in call.arguments
    assert "quarz" not in call.arguments
    assert restored(call.arguments, redaction.values) == json.dumps(
        json.loads(Call.arguments), ensure_ascii=False, separators=(",", ":")
    )
    for broken in ('{"a": "\\n' + KEY + '"', KEY, "[" * 100_000, '"' + KEY + '"'):
        call.arguments = broken
        places, redaction = RedactedTexts(), begin()
        places.add_json(call, "arguments")
        places.redact(redaction)
        assert KEY not in call.arguments


def test_values_of_sessions_are_bounded() -> None:
    values, ours = SessionValues(), Namespace("ours")
    for number in range(1005):
        values.put(ours, SessionId(str(number)), {f"<SECRET_{number:06}>": "x"})
    assert values.of(ours, SessionId("0")) == {}
    values.put(ours, SessionId("1004"), {f"<IP_{number:06}>": "y" for number in range(300)})
    assert len(values.of(ours, SessionId("1004"))) == 256


def test_sessions_of_one_namespace_crowd_out_no_other_namespaces() -> None:
    values, ours, theirs = SessionValues(), Namespace("ours"), Namespace("theirs")
    values.put(ours, SessionId("first"), {"<SECRET_000000>": "x"})
    for number in range(1200):
        values.put(theirs, SessionId(str(number)), {f"<SECRET_{number:06}>": "y"})
    assert values.of(ours, SessionId("first")) == {"<SECRET_000000>": "x"}
    assert values.of(theirs, SessionId("200")) == {}
    assert values.of(theirs, SessionId("201")) != {}


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", privacy=PrivacySettings(redact=("secrets", "pii"))) as service:
        yield service


def test_large_texts_are_redacted_off_the_event_loop(private: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[tuple[int, int]] = []
    find = Finder.find

    def noting(self: Finder, text: str) -> Any:
        threads.append((len(text), threading.get_ident()))
        return find(self, text)

    monkeypatch.setattr(Finder, "find", noting)
    assert private.chat("short").status_code == 200
    (loop,) = {ident for size, ident in threads if size == len("short")}
    for size in (9_000, 200_000):
        words = "ab " * (size // 3)
        assert private.chat(words).status_code == 400  # the model's context has no room for it
        assert private.post("/v1/completions", {"model": MODEL, "prompt": words}).status_code == 400
        assert (
            private.post(
                "/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": words}]}
            ).status_code
            == 400
        )
        assert private.post("/v1/responses", {"model": MODEL, "input": words}).status_code == 400
    large = [ident for size, ident in threads if size >= 9_000]
    assert len(large) == 8
    assert loop not in large


def test_a_misspelt_namespace_starts_no_service(tmp_path: Path) -> None:
    privacy = PrivacySettings.model_validate({"namespaces": {"acne": {"redact": ["secrets"]}}})
    keys = [{"key": "a-long-secret", "namespace": "acme"}]
    with (
        pytest.raises(ConfigError, match=r"privacy\.namespaces\.acne"),
        serve(tmp_path / "no", privacy=privacy, keys=keys),
    ):
        pass


def test_keys_of_the_store_belong_to_namespaces_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    privacy = PrivacySettings.model_validate({"namespaces": {"acme": {"redact": ["secrets"]}}})
    keys = [{"key": "a-long-secret", "namespace": "ours"}]
    (tmp_path / "service").mkdir()
    with open_ready(tmp_path / "service" / "store.db").work() as work:
        work.keys.add(make_key(KeyWish(namespace=Namespace("acme"), name="plugin"), "ada", NOW)[1])
    with serve(tmp_path / "service", privacy=privacy, keys=keys):
        pass
    Redactors(privacy, "a secret").check_namespaces(None)  # of a store that does not answer
    assert "is not checked" in caplog.text


def test_a_tool_whose_name_is_a_secret_is_refused_by_its_place(private: Service) -> None:
    tool = {"type": "function", "function": {"name": KEY, "parameters": {"type": "object", "properties": {}}}}
    error = private.chat("hi", tools=[tool]).json()["error"]
    assert (error["param"], error["code"]) == ("tools[0].function.name", "redacted_name")
    assert KEY not in error["message"]
