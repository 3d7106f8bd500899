"""A judge's endpoint over real HTTP, and judges of a world's log that ask it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepping import step

from core import telemetry
from core.events import Completion, Outcome, Topic
from core.reward_spec import RewardSpec
from core.settings import JudgeSettings
from scoring.judge import Judge

Body = dict[str, Any]
Reply = tuple[int, str, dict[str, str]]
SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 0.5, "false_weight": -0.5},
            "judgement": {"type": "number", "weight": 0.5, "minimum": 0, "maximum": 1, "wait_s": 20},
        }
    }
)


def says(content: object) -> Reply:
    """Return a chat completion with this content."""
    said = content if isinstance(content, str) else json.dumps(content)
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    return 200, json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}), {}


def votes(score: float, reason: str = "it works") -> Reply:
    return says({"reason": reason, "score": score})


def judged_text(body: Body) -> dict[str, Any]:
    """Return the data between the marks of a judge's request."""
    begin, data, end = body["messages"][-1]["content"].split("\n")
    assert begin.removeprefix("BEGIN ") == end.removeprefix("END ")
    return dict(json.loads(data))


class Endpoint:
    """An endpoint for OpenAI's chat completions: `answer` makes the reply; None means that it never comes."""

    def __init__(self) -> None:
        self.asked: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[Body], Reply | None] = lambda body: votes(0.5)
        self.ended = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.asked.append(body)
                endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
                reply = endpoint.answer(body) if self.path == "/v1/chat/completions" else (404, "no such path", {})
                if reply is None:
                    endpoint.ended.wait(600)
                    self.close_connection = True
                    return
                status, text, headers = reply
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(text.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who asked may be gone
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def asked_about(self, text: str) -> int:
        """Return how often it was asked about the turn with this answer."""
        return sum(judged_text(body)["answer"]["text"] == text for body in self.asked)

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def endpoint_of_our_own() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    try:
        yield endpoint
    finally:
        endpoint.close()


def settings_of(endpoint: Endpoint, **fields: Any) -> JudgeSettings:
    usual: dict[str, Any] = {
        "enabled": True,
        "base_url": endpoint.url,
        "model": "judge-1",
    }
    requests = {"timeout_s": 30, "give_up_s": 60, **fields.pop("requests", {})}
    turns = {"per_minute": 10_000, **fields.pop("turns", {})}
    return JudgeSettings.model_validate({**usual, **fields, "requests": requests, "turns": turns})


def met(result: str) -> float:
    """Return how many turns had this result in this process."""
    return telemetry.REGISTRY.get_sample_value("onward_judge_turns_total", {"result": result}) or 0.0


@dataclass
class Judging:
    world: Any
    endpoint: Endpoint
    judges: list[Judge] = field(default_factory=list)

    def start(self, spec: RewardSpec = SPEC, **fields: Any) -> Judge:
        """Start a judge as a new process would: without any memory."""
        settings = settings_of(self.endpoint, **fields)
        judge = Judge(self.world.log, self.world.store, spec, settings, self.world.clock)
        self.judges.append(judge)
        return judge

    def run(self, judge: Judge, until: Callable[[], Any] | None = None) -> None:
        """Run the judge until the condition is met, or until it has nothing left to do."""
        deadline_s = time.monotonic() + 120
        while not (until() if until is not None else self.is_done(judge)):
            assert time.monotonic() < deadline_s, "waited in vain"
            step(judge, 0.01)

    def is_done(self, judge: Judge) -> bool:
        if not judge._progress.reached() or judge._unsaid:
            return False
        return all(self.world.log.end(source) == at for source, at in judge._progress.reached().items())

    def close(self, judge: Judge) -> None:
        self.judges.remove(judge)
        judge.close()

    def said(self) -> list[Outcome]:
        """Return the judges' outcomes in the log."""
        reader = self.world.log.reader([Topic.TURNS])
        try:
            events = [record.event for record in reader.poll(10_000, 0)]
        finally:
            reader.close()
        return [event for event in events if isinstance(event, Outcome) and event.source == "judge"]

    def about(self, turn: Completion) -> Outcome:
        (outcome,) = [outcome for outcome in self.said() if outcome.inference_id == turn.inference_id]
        return outcome
