"""The privacy of all that a service wrote and logged at work: who may read it, and what must not be in it."""

import json
import os
import socket
import sqlite3
import stat
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from at_rest import forms_of, where_at_rest
from processes import words_of
from service_tree import Refused, Service, user, wait_for
from tokenizers import Tokenizer

from learner.versions.manifest import decode
from onward.directory.layout import SHIPPED_MODEL, SHIPPED_REWARDS

UNHEARD = 'unheard "canary" of 4711\nsang'
HEARD = 'overheard "parrot" of 4712\nsang'
SECRETS = {
    "api.keys": "planted-api-key-1",
    "api.user_hash_key": "planted-hash-key-2",
    "judge.api_key": "planted-judge-key-3",
    "judge.base_url": "planted-judge-password-4",
    "postgres.url": "planted-postgres-password-5",
    "redis.url": "planted-redis-password-6",
    "kafka.security.sasl_password": "planted-kafka-password-7",
    "serving.sglang.admin_key": "planted-engine-key-8",
}
SETTINGS = """
[[api.keys]]
key = "{api.keys}"
namespace = "team"
scopes = ["chat", "feedback", "admin"]

[judge]
enabled = true
base_url = "http://judge:{judge.base_url}@127.0.0.1:{port}/v1"
model = "judge"

[judge.requests]
timeout_s = 1.0
give_up_s = 1.0

[postgres]
url = "postgresql://onward:{postgres.url}@127.0.0.1:5432/onward"

[redis]
url = "redis://:{redis.url}@127.0.0.1:6379/0"

[kafka.security]
protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
sasl_username = "onward"
sasl_password = "{kafka.security.sasl_password}"

[serving.sglang]
admin_key = "{serving.sglang.admin_key}"

[learner.batch]
turns = 4
min_turns = 2
"""
IN_THE_ENVIRONMENT = {
    "ONWARD_API__USER_HASH_KEY": SECRETS["api.user_hash_key"],
    "ONWARD_JUDGE__API_KEY": SECRETS["judge.api_key"],
}
KEY = {"Authorization": f"Bearer {SECRETS['api.keys']}"}
TOOL = {"type": "function", "function": {"name": "sing", "description": UNHEARD, "parameters": {"type": "object"}}}
MADE = {"id": "call_1", "type": "function", "function": {"name": "sing", "arguments": json.dumps({"words": UNHEARD})}}


def settings_text() -> str:
    with socket.socket() as nobody:  # a port on which nobody listens
        nobody.bind(("127.0.0.1", 0))
        text = SETTINGS.replace("{port}", str(nobody.getsockname()[1]))
    for name, secret in SECRETS.items():
        text = text.replace(f"{{{name}}}", secret)
    return text


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start a service on a directory with the usual, wide permissions."""
    directory = tmp_path_factory.mktemp("private") / "service"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "onward.toml").write_text(settings_text())
    (directory / "onward.toml").chmod(0o600)
    (directory / "rewards.toml").write_text(SHIPPED_REWARDS.read_text())
    (directory / "rewards.toml").chmod(0o600)
    before = dict(os.environ)
    os.environ.update(IN_THE_ENVIRONMENT)
    try:
        service = Service(directory, {}).start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield service
    finally:
        service.kill()


def ask(service: Service, path: str, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = service.post(f"/v1/{path}", {"model": "onward-tiny", "max_tokens": 24, **fields}, **KEY)
    return answer


def chat(service: Service, words: str, **fields: Any) -> dict[str, Any]:
    return ask(service, "chat/completions", messages=[user(words)], **fields)


def stream(service: Service, path: str, *, to_its_end: bool, **fields: Any) -> None:
    body = json.dumps({"model": "onward-tiny", "stream": True, **fields}).encode()
    headers = {"Content-Type": "application/json", **KEY}
    with urllib.request.urlopen(
        urllib.request.Request(f"{service.url}/v1/{path}", body, headers), timeout=60
    ) as answer:
        answer.read() if to_its_end else answer.read(64)


@contextmanager
def log_away(service: Service) -> Iterator[None]:
    """Lock the log's file with a transaction that does not end within the block."""
    blocker = sqlite3.connect(service.directory / "log.db", isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        yield
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()


def say_all(service: Service) -> list[str]:
    """Send UNHEARD in every kind of request with `store: false`; return two inference ids, the second spooled."""
    ended_well = chat(service, UNHEARD, store=False, user="ada", metadata={"note": UNHEARD}, stop=[UNHEARD])
    ask(service, "completions", prompt=UNHEARD, suffix=None, store=False)
    result = {"role": "tool", "tool_call_id": "call_1", "content": UNHEARD}
    said = [user(UNHEARD), {"role": "assistant", "content": None, "tool_calls": [MADE]}, result]
    ask(service, "chat/completions", messages=said, tools=[TOOL], store=False)
    stream(service, "chat/completions", to_its_end=True, messages=[user(UNHEARD)], max_tokens=24, store=False)
    stream(service, "completions", to_its_end=True, prompt=UNHEARD, max_tokens=24, store=False)
    stream(service, "chat/completions", to_its_end=False, messages=[user(UNHEARD)], max_tokens=400, store=False)
    with pytest.raises(Refused, match="temperature"):
        chat(service, UNHEARD, temperature=UNHEARD, store=False)
    with pytest.raises(Refused):
        chat(service, UNHEARD * 2000, store=False)
    with log_away(service):
        spooled = chat(service, UNHEARD, store=False)
        assert any(path.stat().st_size for path in (service.directory / "spool").iterdir()), "nothing was spooled"
        assert where_at_rest(service.directory, forms(UNHEARD)) == []
    return [ended_well["onward"]["inference_id"], spooled["onward"]["inference_id"]]


def forms(words: str) -> dict[str, bytes]:
    """Return the forms of a text at rest, with only the middle tokens, which do not depend on their context."""
    ids = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json")).encode(words, add_special_tokens=False).ids
    return forms_of(words, ids[2:-2])


def stored(service: Service, inference_id: str) -> Any:
    try:
        return service.get(f"/v1/turns/{inference_id}", **KEY)
    except Refused:
        return None


@pytest.fixture(scope="module")
def at_work(service: Service) -> list[str]:
    """Send turns that are not to be stored, then some that are; return the ids of the former.

    A version has learned from the latter."""
    unheard = say_all(service)
    for inference_id in unheard:
        wait_for(lambda inference_id=inference_id: stored(service, inference_id), what="the turn in the store")
        accept(service, inference_id)
    chat(service, HEARD)
    for number in range(6):
        accept(service, chat(service, f"[web] write total(xs): sum of xs {number % 3}")["onward"]["inference_id"])
    wait_for(lambda: len(service.get("/v1/policies", **KEY)["data"]) > 1, what="a version that learned")
    return unheard


def accept(service: Service, inference_id: str, *, good: bool = True) -> None:
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": good}
    service.post("/v1/feedback", said, **KEY)


def test_nothing_of_what_is_not_to_be_stored_rests(service: Service, at_work: list[str]) -> None:
    """Stored text is found by the same search, which proves that the search works."""
    wait_for(lambda: where_at_rest(service.directory, forms(HEARD)), what="what was stored")
    found = where_at_rest(service.directory, forms(HEARD))
    assert {place.rsplit(": ", 1)[1] for place in found} >= {"text", "ids (msgpack)"}, found
    assert where_at_rest(service.directory, forms(UNHEARD)) == []
    assert UNHEARD not in service.log_text()
    for inference_id in at_work:
        turn = stored(service, inference_id)
        assert (turn["stored"], turn["trainable"], turn["untrainable_reasons"]) == (False, False, ["not_stored"])
        assert (turn["messages"], turn["text"], turn["tokens"], turn["tags"]) == ([], "", [], {})
        assert turn["prompt_tokens"] > 0
        assert turn["rewards"][0]["value"] == 1.0
    assert 'onward_untrainable_turns_total{reason="not_stored"}' in service.text("/metrics")


def test_what_it_writes_is_its_users_alone(service: Service, at_work: list[str]) -> None:
    assert stat.S_IMODE(service.directory.stat().st_mode) == 0o700
    wider = {str(path): oct(mode) for path, mode in modes_below(service.directory).items() if mode & 0o077}
    assert wider == {}
    names = {path.name for path in service.directory.iterdir()}
    assert {"log.db", "store.db", "blobs", "spool", "learner", "service.json", "ready"} <= names


def modes_below(directory: Path) -> dict[Path, int]:
    """Return the rights of all files and folders but links; what the service removes amid the look is passed over."""
    found: dict[Path, int] = {}
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode):
                    found[path.relative_to(directory)] = stat.S_IMODE(mode)
    return found


def readiness(service: Service) -> str:
    """Return the body of `/readyz`, ready or not."""
    try:
        return json.dumps(service.get("/readyz"))
    except Refused as refused:
        return json.dumps(refused.body)


def test_no_secret_is_in_an_argument_or_in_what_it_says(service: Service, at_work: list[str]) -> None:
    """The whole process tree is searched; it logs complaints about a judge that it cannot reach."""
    wait_for(lambda: "judge" in service.log_text(), what="a complaint")
    process = psutil.Process(service.pid)
    tree = [process, *process.children(recursive=True)]
    assert len(tree) > 1
    said = {
        "arguments": "\n".join(" ".join(words_of(each)) for each in tree),
        "output": service.log_text(),
        "readiness": readiness(service),
        "status": json.dumps(service.get("/v1/status", **KEY)),
        "metrics": service.text("/metrics"),
    }
    shown = [f"{name} in {place}" for place, text in said.items() for name, secret in SECRETS.items() if secret in text]
    assert shown == []


def test_whose_user_withdraws_teaches_no_more_and_is_taken_back(service: Service, at_work: list[str]) -> None:
    """From the request that withdraws to what the learner's manifests say of the turns."""

    def taught(*, taken_back: bool) -> set[str]:
        """Return which turns trained in any version, or were taken back."""
        files = (service.directory / "blobs" / "manifests").rglob("*")
        records = [record for file in files if file.is_file() for record in decode(file.read_bytes()).turns]
        return {str(each.inference_id) for each in records if not each.dropped and (each.reward == 0) == taken_back}

    def work_of(who: str) -> set[str]:
        """Send turns of a user, some accepted and some not: what is all alike teaches nothing."""
        ids = [chat(service, f"[web] write mean(xs): {n}", user=who)["onward"]["inference_id"] for n in range(4)]
        for number, inference_id in enumerate(ids):
            accept(service, inference_id, good=number % 2 == 0)
        return set(ids)

    hers = work_of("eve")
    wait_for(lambda: taught(taken_back=False) & hers, what="a version that learned from her turns")
    said = service.post("/v1/consent", {"user": "eve", "learn": False}, **KEY)
    assert "stays in their weights" in said["says"]
    assert chat(service, "[web] write mean(xs)", user="eve")["onward"]["learn"] is False
    for inference_id in hers:
        wait_for(lambda each=inference_id: stored(service, each)["rewards"][-1]["void"], what="a void reward")
    work_of("bob")
    wait_for(lambda: taught(taken_back=True) & hers, what="an update that takes back what she taught")
    assert service.get("/v1/consent?user=eve", **KEY)["learn"] is False
