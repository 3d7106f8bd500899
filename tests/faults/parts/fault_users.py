"""Simulated users over HTTP that record what was acknowledged to them and what failed."""

import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from service_tree import wait_for

from core.ids import InferenceId

_AWAY = (urllib.error.URLError, http.client.HTTPException, OSError)
_PATIENCE_S = 120.0
# The average between two requests; longer where other tests share the cores.
_THINKS_S = 0.25 if os.environ.get("FULL") == "1" else 0.6
_AGAIN_S = 0.2  # after a request that failed
_MOST_TURNS = 3  # of a session


@dataclass(frozen=True)
class Failure:
    url: str
    path: str
    began_s: float  # monotonic
    failed_s: float
    why: str


class Users:
    """Users with sessions of a few turns at any replica, who give feedback on every answer.

    Feedback that failed is sent again with the same id, at any replica, as clients do."""

    def __init__(self, urls: Sequence[str], threads: int = 3) -> None:
        self._urls = list(urls)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.turns: list[InferenceId] = []
        self.outcomes: dict[str, InferenceId] = {}
        """The turn of each feedback id."""
        self.unlogged: list[InferenceId] = []
        self.requests = 0
        self.failures: list[Failure] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Users":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.leave()

    def leave(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int, timeout_s: float = 400) -> None:
        """Wait for this many more turns."""
        enough = len(self.turns) + count
        wait_for(lambda: len(self.turns) >= enough, timeout_s, f"{count} more turns")

    # ------------------------------------------------------------------------------------------ one of them

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over.is_set():
            session = {"x-session-id": str(uuid.uuid4())}
            messages: list[dict[str, str]] = []
            for _ in range(chance.randint(1, _MOST_TURNS)):
                messages.append({"role": "user", "content": f"[web] write f{chance.randrange(1000)}(xs): sum of xs"})
                answer = self._chat(chance, messages, session)
                if answer is None or self._over.wait(chance.expovariate(1 / _THINKS_S)):
                    break
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})

    def _chat(self, chance: random.Random, messages: Sequence[Mapping[str, str]], session: Mapping[str, str]) -> Any:
        body = {"model": "onward-tiny", "messages": messages, "max_tokens": 12}
        answer = self._post(chance, "/v1/chat/completions", body, session)
        if answer is None:
            return None
        inference_id = InferenceId(answer["onward"]["inference_id"])
        if not answer["onward"]["logged"]:
            self.unlogged.append(inference_id)
            return answer
        self.turns.append(inference_id)
        self._judge(chance, inference_id)
        return answer

    def _judge(self, chance: random.Random, inference_id: InferenceId) -> None:
        outcome = {"inference_id": inference_id, "metric_name": chance.choice(("accepted", "rejected")), "value": True}
        own_id = {"feedback_id": str(uuid.uuid4())}
        while True:
            said = self._post(chance, "/v1/feedback", outcome | own_id, {})
            if said is not None:
                self.outcomes[said["feedback_id"]] = inference_id
            if said is not None or self._over.is_set():
                return

    def _post(self, chance: random.Random, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """Send a request; return None if it was not acknowledged."""
        url, data, began_s = chance.choice(self._urls), json.dumps(body).encode(), time.monotonic()
        with self._lock:
            self.requests += 1
        try:
            request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **headers})
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
                return json.load(response)
        except _AWAY as error:
            self.failures.append(Failure(url, path, began_s, time.monotonic(), _why(error)))
            self._over.wait(_AGAIN_S)
            return None


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"{error.code}: {error.read().decode(errors='replace')[:300]}"
    return f"{type(error).__name__}: {error}"
