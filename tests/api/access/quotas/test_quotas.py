"""Quotas: who has used his minute or his month waits, and hears how long; nobody else does."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_harness import MODEL, Service, serve, serve_replicas, wait_for
from ready_stores import open_ready
from sqlalchemy import text
from stores import KINDS, database

from api.access.quotas.months import Months
from api.live_state.memory import MemoryLiveState
from core.clock import ManualClock
from core.errors import StoreUnavailable
from core.events import Topic
from core.operations.quotas import Account, Use, month_of, seconds_left_in_minute, seconds_left_in_month
from core.ports import CountWindow
from core.settings import PriceSettings, Quota, QuotaSettings
from core.telemetry import QUOTA_REFUSED, QUOTA_USED

KEYS: Any = (
    {"key": "key-of-acme", "namespace": "acme", "name": "acme-plugin", "scopes": ("chat", "feedback", "read")},
    {"key": "another-of-acme", "namespace": "acme", "name": "acme-batch", "scopes": ("chat",)},
    {"key": "key-of-others", "namespace": "others", "name": "others", "scopes": ("chat", "read")},
)
NOVEMBER = datetime(2026, 11, 26, 12, 30, 15, tzinfo=UTC)
ACME = Account("namespace", "acme", "acme")


@pytest.fixture(autouse=True)
def _tells_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.quotas.months.TELL_S", 0.05)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def chat(service: Service, key: str = "key-of-acme", **fields: Any) -> httpx.Response:
    return service.chat("hi", headers=bearer(key), **fields)


def of_namespace(**limits: int) -> QuotaSettings:
    return QuotaSettings(namespaces={"acme": Quota(**limits)})


@contextmanager
def serving(directory: Path, quotas: QuotaSettings, clock: ManualClock | None = None, **more: Any) -> Iterator[Service]:
    at = clock or ManualClock(NOVEMBER)
    with serve(directory / "service", keys=KEYS, quotas=quotas, clock=at, **more) as service:
        yield service


def spent(service: Service, account: Account = ACME, month: str = "2026-11") -> Use:
    with service.store.look() as view:
        return view.spending.of_accounts(month, [account]).get(account, Use())


def spent_this_minute(service: Service) -> int:
    """Return the tokens that the live state has for this minute; to add nothing is to look."""
    window = CountWindow(name=f"{service.services.clock.now():%Y%m%d%H%M}:tokens:{ACME.path}", add=0)
    return asyncio.run(service.live_state.spend([window], 120.0))[0]


def tokens_of(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["total_tokens"])


# ------------------------------------------------------------------------------------------ minutes


def test_requests_of_a_minute_are_counted_for_all_keys_and_begin_anew_with_the_next(tmp_path: Path) -> None:
    clock = ManualClock(NOVEMBER)
    with serving(tmp_path, of_namespace(requests_per_minute=2), clock) as service:
        first, second, third = chat(service), chat(service, "another-of-acme"), chat(service)
        assert [each.status_code for each in (first, second, third)] == [200, 200, 429]
        assert [each.headers["x-ratelimit-remaining-requests"] for each in (first, second, third)] == ["1", "0", "0"]
        assert third.headers["retry-after"] == "45"
        assert third.json()["error"]["code"] == "rate_limit_exceeded"
        assert "this namespace has used its 2 requests of this minute" in third.json()["error"]["message"]
        assert chat(service, "key-of-others").status_code == 200
        clock.advance(45)
        assert chat(service).status_code == 200


def test_tokens_of_a_minute_are_counted_as_they_were_used(tmp_path: Path) -> None:
    clock = ManualClock(NOVEMBER)
    with serving(tmp_path, of_namespace(tokens_per_minute=10_000), clock) as service:
        used = tokens_of(chat(service))
        limit = used + 1
    with serving(tmp_path / "service", of_namespace(tokens_per_minute=limit), clock) as service:
        first = chat(service)
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, str(limit))
        wait_for(lambda: spent_this_minute(service) == used, "what the first used, which is counted behind its answer")
        second = chat(service)
        assert (second.status_code, second.headers["x-ratelimit-remaining-tokens"]) == (200, "1"), "one token is left"
        wait_for(lambda: spent_this_minute(service) == 2 * used, "what the second used")
        refused = chat(service)
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-limit-tokens"] == str(limit)
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


def test_low_priority_leaves_half_of_a_minute_to_others(tmp_path: Path) -> None:
    with serving(tmp_path, of_namespace(requests_per_minute=4)) as service:
        low = {**bearer("key-of-acme"), "x-onward-priority": "low"}
        assert [service.chat("hi", headers=low).status_code for _ in range(3)] == [200, 200, 429]
        assert [chat(service).status_code for _ in range(3)] == [200, 200, 429]


def test_a_key_and_a_user_have_quotas_of_their_own(tmp_path: Path) -> None:
    quotas = QuotaSettings(
        keys={"acme-batch": Quota(requests_per_minute=1)}, users={"acme": Quota(requests_per_minute=2)}
    )
    with serving(tmp_path, quotas) as service:
        assert [chat(service, "another-of-acme").status_code for _ in range(2)] == [200, 429]
        of_ada = [chat(service, user="ada") for _ in range(3)]
        assert [each.status_code for each in of_ada] == [200, 200, 429]
        assert "this user" in of_ada[2].json()["error"]["message"]
        assert chat(service, user="bob").status_code == chat(service).status_code == 200
        assert chat(service, "key-of-others", user="ada").status_code == 200


# ------------------------------------------------------------------------------------------ months


@pytest.mark.parametrize("kind", KINDS)
def test_a_months_budget_outlives_a_restart_and_ends_with_the_month(tmp_path: Path, kind: str) -> None:
    clock, quotas = ManualClock(NOVEMBER), of_namespace(requests_per_month=3)
    with database(kind, tmp_path) as home:
        with serving(tmp_path, quotas, clock, opened=home.open()) as service:
            assert [chat(service).headers["x-onward-month-remaining-requests"] for _ in range(2)] == ["2", "1"]
        with serving(tmp_path, quotas, clock, opened=home.open()) as service:
            assert [chat(service).status_code for _ in range(2)] == [200, 429]
            refused = chat(service)
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
            left_s = int((datetime(2026, 12, 1, tzinfo=UTC) - NOVEMBER).total_seconds())
            assert refused.headers["retry-after"] == str(left_s)
            clock.advance(left_s - 1)
            assert chat(service).status_code == 429
            clock.advance(1)
            assert chat(service).status_code == 200
            wait_for(lambda: spent(service, month="2026-12").requests == 1)
            assert spent(service).requests == 3


def test_a_months_tokens_are_those_of_prompts_and_answers(tmp_path: Path) -> None:
    with serving(tmp_path, of_namespace(tokens_per_month=100_000)) as service:
        used = [tokens_of(chat(service)) for _ in range(3)]
        wait_for(lambda: spent(service)[:2] == (3, sum(used)))
        answer = chat(service)
        assert answer.headers["x-onward-month-limit-tokens"] == "100000"
        assert answer.headers["x-onward-month-remaining-tokens"] == str(100_000 - sum(used))
        with service.http.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True},
            headers=bearer("key-of-acme"),
        ) as stream:
            stream.read()
        wait_for(lambda: spent(service)[:2] == (5, sum(used) + 2 * used[0]))


def test_replicas_hear_what_others_served(tmp_path: Path) -> None:
    parts: Any = {"keys": KEYS, "clock": ManualClock(NOVEMBER), "quotas": of_namespace(requests_per_month=50)}
    parts["live_states"] = [MemoryLiveState(), MemoryLiveState()]
    with serve_replicas(tmp_path / "service", 2, **parts) as (first, second):
        assert chat(second).status_code == 200
        assert [chat(first).status_code for _ in range(3)] == [200, 200, 200]
        wait_for(lambda: chat(first).status_code == 429)
        wait_for(lambda: spent(first).requests >= 50, "what both served in the store, where the other hears of it")
        statuses: list[int] = []
        wait_for(lambda: statuses.append(chat(second).status_code) or statuses[-1] == 429)
        assert statuses.count(200) < 48, "it heard so, and has not served as many itself"


def test_what_was_refused_is_shown_and_counted(tmp_path: Path) -> None:
    quotas = QuotaSettings(namespaces={"acme": Quota(tokens_per_month=1)}, users={"acme": Quota(requests_per_month=50)})
    refusals = QUOTA_REFUSED.labels("namespace", "tokens", "month")
    before = refusals._value.get()
    with serving(tmp_path, quotas) as service:
        used = tokens_of(chat(service, user="ada"))
        wait_for(lambda: spent(service).tokens == used, "what it used, which is counted behind its answer")
        assert chat(service).status_code == 429
        assert refusals._value.get() > before
        shown = service.get("/v1/quotas", **bearer("key-of-acme")).json()
        assert (shown["month"], shown["resets_in_s"]) == ("2026-11", 386_985)
        rows = {row["kind"]: row for row in shown["data"]}
        assert rows["namespace"]["used"]["tokens"] == used
        assert rows["namespace"]["left"] == {"requests": None, "tokens": 0, "stored_bytes": None}
        assert (rows["user"]["left"]["requests"], rows["user"]["used"]["requests"]) == (49, 1)
        assert rows["user"]["name"] != "ada"
        assert service.get("/v1/quotas", **bearer("key-of-others")).json()["data"] == []
        wait_for(lambda: QUOTA_USED.labels("namespace", "acme", "tokens")._value.get() == used)


def test_with_prices_a_namespaces_month_has_a_cost(tmp_path: Path) -> None:
    """A prompt that goes on from the turn before costs what it adds to that; without prices no cost is claimed."""
    prices = PriceSettings(prompt=2.0, output=10.0)
    told = [{"role": "user", "content": "hi"}]
    mine = bearer("key-of-acme")
    with serving(tmp_path, QuotaSettings(), prices=prices) as service:
        assert service.get("/v1/quotas", **mine).json()["data"][0]["cost"] == 0.0
        first = service.chat("hi", headers=mine).json()
        told += [first["choices"][0]["message"], {"role": "user", "content": "and now?"}]
        second = service.post("/v1/chat/completions", {"model": MODEL, "messages": told}, **mine).json()
        used = [answer["usage"] for answer in (first, second)]
        output = sum(each["completion_tokens"] for each in used)
        new = used[1]["prompt_tokens"] - used[0]["completion_tokens"]  # the first prompt stands in the second
        wait_for(lambda: spent(service).output_tokens == output)
        shown = service.get("/v1/quotas", **mine).json()
        assert shown["prices"] == {"prompt": 2.0, "output": 10.0}
        (row,) = shown["data"]
        assert (row["kind"], row["used"]["new_prompt_tokens"], row["used"]["requests"]) == ("namespace", new, 2)
        assert row["cost"] == pytest.approx((2.0 * new + 10.0 * output) / 1e6)
        assert (row["cost_unknown"], set(row["left"].values())) == (None, {None})
        with service.store.begin() as connection:  # as a build that did not count them left the month
            connection.execute(text("UPDATE spending SET new_prompt_tokens = NULL, output_tokens = NULL"))
        chat(service)
        wait_for(lambda: spent(service).requests == 3)
        (row,) = service.get("/v1/quotas", **mine).json()["data"]
        assert (row["cost"], row["cost_unknown"]) == (None, "not_counted")
        assert service.get("/v1/quotas", **bearer("key-of-others")).json()["data"][0]["used"]["requests"] == 0
    with serving(tmp_path, of_namespace(requests_per_month=9)) as service:
        shown = service.get("/v1/quotas", **mine).json()
        assert (shown["prices"], shown["data"][0]["cost"], shown["data"][0]["cost_unknown"]) == (None, None, "no_price")


def test_without_quotas_nothing_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path, QuotaSettings()) as service:
        answer = chat(service)
        assert not [name for name in answer.headers if "month" in name or "ratelimit" in name]
        assert spent(service) == Use()


# ------------------------------------------------------------------------------------------ stored bytes


def logged_bytes(service: Service) -> int:
    reader = service.log.reader([Topic.TURNS])
    try:
        return sum(len(record.raw) for record in reader.poll(1000, 1.0))
    finally:
        reader.close()


def test_all_that_is_stored_counts_and_beyond_it_nothing_is_taken_or_dropped(tmp_path: Path) -> None:
    unseen = {"metadata": {f"note-{n}": "x" * 500 for n in range(16)}}  # kept, and never shown to the model
    mine = bearer("key-of-acme")
    with serving(tmp_path, of_namespace(stored_bytes_per_month=15_000)) as service:
        first = service.post("/v1/completions", {"model": MODEL, "prompt": "def f(", **unseen}, **mine)
        assert first.headers["x-onward-month-remaining-stored-bytes"] == "15000"
        about = {"inference_id": first.headers["x-onward-inference-id"], "metric_name": "comment"}
        said = service.post("/v1/feedback", {**about, "feedback_id": "f1", "value": "good"}, **mine)
        assert said.status_code == 200
        assert chat(service, **unseen).status_code == 200, "some bytes were left"
        used = logged_bytes(service)
        wait_for(lambda: spent(service).stored_bytes == used > 16_000)
        more = {**about, "feedback_id": "f2", "value": "bad", "evidence": "x" * 1000}
        ended = f"/v1/sessions/{first.headers['x-onward-session-id']}/end"
        words, now = first.json()["choices"][0]["text"], NOVEMBER.isoformat()
        seen = {"eventName": "autocomplete", "schema": "0.2.0", "timestamp": now, "userId": ""}
        seen |= {"accepted": True, "completion": words, "prompt": "def f("}
        report = {"name": "autocomplete", "schema": "0.2.0", "profileId": "local", "level": "all", "data": seen}
        refused = [
            chat(service),
            service.post("/v1/feedback", more, **mine),
            service.post("/v1/continue/data", report, **mine),
            service.post(ended, None, **mine),
        ]
        assert [each.status_code for each in refused] == [429] * 4
        assert {each.json()["error"]["code"] for each in refused} == {"insufficient_quota"}
        assert "has used its 15000 stored bytes of this month" in refused[1].json()["error"]["message"]
        assert refused[1].headers["x-onward-month-remaining-stored-bytes"] == "0"
        assert int(refused[1].headers["retry-after"]) > 60
        (row,) = service.post("/v1/feedback/batch", {"feedback": [more]}, **mine).json()["data"]
        assert (row["status"], row["retry"]) == (429, True)
        assert logged_bytes(service) == used
        assert service.get("/v1/quotas", **mine).json()["data"][0]["left"]["stored_bytes"] == 0
        assert chat(service, "key-of-others").status_code == 200
        assert service.delete("/v1/feedback/f1", **mine).status_code == 200, "what was said may be taken back"


def test_a_users_feedback_counts_on_his_minute(tmp_path: Path) -> None:
    clock = ManualClock(NOVEMBER)
    quotas = QuotaSettings(users={"acme": Quota(stored_bytes_per_minute=1000)})
    with serving(tmp_path, quotas, clock) as service:
        turn = chat(service).headers["x-onward-inference-id"]

        def say(user: str) -> int:
            told = {"inference_id": turn, "metric_name": "comment", "value": "x" * 1000, "user": user}
            return service.post("/v1/feedback", told, **bearer("key-of-acme")).status_code

        assert [say("ada"), say("ada"), say("bob")] == [200, 429, 200]
        clock.advance(45)
        assert say("ada") == 200


class AwayStore:
    """A store that answers while it is told to."""

    def __init__(self, path: Path) -> None:
        self._store = open_ready(path)
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away and name in ("look", "work"):
            raise StoreUnavailable("away")
        return getattr(self._store, name)


def test_while_the_store_is_away_use_is_kept_and_told_once_it_is_back(tmp_path: Path) -> None:
    store: Any = AwayStore(tmp_path / "store.db")
    clock = ManualClock(NOVEMBER)

    async def scenario() -> None:
        months = Months(of_namespace(requests_per_month=9), store, clock)
        store.away = True
        assert await months.of([ACME]) == {ACME: Use()}
        months.add({ACME: Use(2, 5)})
        await months.tell()
        assert await months.of([ACME]) == {ACME: Use(2, 5)}
        store.away = False
        with store.work() as work:
            work.spending.add("2026-11", {ACME: Use(1, 1)})  # of another replica
        await months.tell()
        await months.tell()
        assert await months.of([ACME]) == {ACME: Use(3, 6)}
        ada = Account("user", "acme", "ab12")
        await months.of([ada])
        known = []
        for _ in range(2):
            await months.tell()
            known.append(set(months._known))
        assert known == [{ACME, ada}, {ACME}], "of users those alone who asked lately"
        months.add({ACME: Use(1, 0)})
        clock.advance_to(datetime(2026, 12, 1, tzinfo=UTC))
        assert await months.of([ACME]) == {ACME: Use()}
        await months.tell()
        with store.look() as view:
            assert view.spending.of_accounts("2026-11", [ACME]) == {ACME: Use(4, 6)}

    asyncio.run(scenario())
    store.close()


def test_months_and_minutes_end_where_the_calendar_says() -> None:
    december = datetime(2026, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)
    assert month_of(december) == "2026-12"
    assert month_of(december.astimezone(tz=None)) == "2026-12"
    assert seconds_left_in_month(december) == seconds_left_in_minute(december) == 0.5
    assert seconds_left_in_month(datetime(2024, 2, 1, tzinfo=UTC)) == timedelta(days=29).total_seconds()
