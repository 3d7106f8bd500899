"""Client input that SQLite can hold and Postgres cannot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from stores import database

NUL = "a%00b"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with database("postgres", tmp_path) as home:
        monkeypatch.setattr("api_harness.open_ready", lambda _: home.open())
        with serve(tmp_path / "service") as service:
            yield service


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/sessions/{NUL}"),
        ("POST", f"/v1/sessions/{NUL}/end"),
        ("GET", f"/v1/feedback/{NUL}"),
        ("DELETE", f"/v1/feedback/{NUL}"),
    ],
)
def test_an_id_that_nothing_can_have_is_unknown(service: Service, method: str, path: str) -> None:
    answer = service.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"][:7]) == (404, "unknown")


def test_text_with_nul_is_refused_by_its_field_or_kept(service: Service) -> None:
    turn = service.chat("hello").json()["id"].removeprefix("chatcmpl-")
    fields = {"inference_id": turn, "metric_name": "comment", "value": "a\0b", "tags": {"a\0": "b\0"}}
    assert service.http.post("/v1/feedback", json=fields).status_code == 200
    for field in ("inference_id", "feedback_id", "metric_name", "supersedes"):
        answer = service.http.post("/v1/feedback", json=fields | {field: "a\0b"})
        assert 400 <= answer.status_code < 500
    answer = service.http.post("/v1/policies/1/hold", json={"why": "a\0b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "why")
