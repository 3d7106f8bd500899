"""Users of one cluster, who note what was acknowledged to them and what failed."""

import http.client
import random
import threading
import time
import urllib.error
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from bench.clusters.cluster_world import Cluster, asked
from core.ids import InferenceId

_FAILURES = (OSError, http.client.HTTPException)
_THINKS_S = 0.25  # the mean before the next request
_AGAIN_S = 0.2  # after a request that failed
_TOKENS = 24
Span = tuple[float, float]
"""From when to when, in monotonic seconds."""


@dataclass(frozen=True)
class Failure:
    """A request that was not acknowledged; `why` is for people."""

    span: Span
    why: str


class Users:
    """Users who judge every answer. A verdict that failed is sent again under its id, as clients do."""

    def __init__(self, cluster: Cluster, count: int = 2) -> None:
        self._cluster, self._over = cluster, threading.Event()
        self.turns: dict[InferenceId, float] = {}
        """When each was acknowledged, in monotonic seconds."""
        self.outcomes: dict[str, InferenceId] = {}
        """The turn of each."""
        self.requests: list[float] = []
        """When each began, in monotonic seconds."""
        self.failures: list[Failure] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

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

    def unexplained(self, span: Span) -> list[Failure]:
        """Return the failures of requests begun within a span that no kill of their cluster explains."""
        within = [each for each in self.failures if span[0] <= each.span[0] < span[1]]
        return [each for each in within if not any(_overlap(each.span, away) for away in self._cluster.away)]

    def begun(self, span: Span) -> int:
        return sum(span[0] <= began_s < span[1] for began_s in list(self.requests))

    def said(self, span: Span) -> set[InferenceId]:
        """Return the turns that were acknowledged within a span."""
        return {turn for turn, at_s in list(self.turns.items()) if span[0] <= at_s < span[1]}

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over.wait(chance.expovariate(1 / _THINKS_S)):
            content = f"[web] write f{chance.randrange(1000)}(xs): sum of xs"
            body = {"model": "onward-tiny", "messages": [{"role": "user", "content": content}], "max_tokens": _TOKENS}
            answer = self._post("/v1/chat/completions", body)
            if answer is not None:
                self._judge(chance, InferenceId(answer["onward"]["inference_id"]))

    def _judge(self, chance: random.Random, turn: InferenceId) -> None:
        self.turns[turn] = time.monotonic()
        verdict = {"inference_id": turn, "metric_name": chance.choice(("accepted", "rejected")), "value": True}
        own_id = {"feedback_id": str(uuid.uuid4())}
        said = None
        while said is None and not self._over.is_set():
            said = self._post("/v1/feedback", verdict | own_id)
        if said is not None:
            self.outcomes[said["feedback_id"]] = turn

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return an answer's JSON; None where the request was not acknowledged."""
        began_s = time.monotonic()
        self.requests.append(began_s)
        try:
            answer = asked(self._cluster.url + path, body)
            if answer.get("onward", {}).get("logged", True):
                return answer
            why = "the answer was not logged"
        except urllib.error.HTTPError as error:
            with error:
                why = f"{error.code}: {error.read().decode(errors='replace')[:300]}"
        except _FAILURES as error:
            why = f"{type(error).__name__}: {error}"
        self.failures.append(Failure((began_s, time.monotonic()), why))
        self._over.wait(_AGAIN_S)
        return None


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]
