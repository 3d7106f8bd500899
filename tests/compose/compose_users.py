"""Users of the stack that record what was acknowledged to them and continue while parts of it are down."""

import random
import threading
import uuid
from collections import Counter
from types import TracebackType
from typing import Any

from compose_stack import Refused, Stack, ask, wait_for

_PATIENCE_S = 300


class Users:
    """Users that work within `with`; afterwards their records are checked."""

    def __init__(self, stack: Stack, threads: int = 3) -> None:
        self._stack, self._url, self._key = stack, stack.url, stack.key()
        self._over = threading.Event()
        self.inference_ids: list[str] = []
        self.outcome_ids: list[str] = []
        self.refused: Counter[str] = Counter()
        self._chance = random.Random(threads)
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Users":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def turns(self) -> int:
        return len(self.inference_ids)

    def wait_turns(self, more: int, timeout_s: float = _PATIENCE_S) -> None:
        wanted = self.turns + more
        wait_for(lambda: self.turns >= wanted, timeout_s, lambda: f"{more} more turns ({self.refused})")

    @property
    def broken(self) -> list[str]:
        """What was refused by an error of ours, and not because an engine was full or a turn not yet stored."""
        return [said for said in self.refused if not said.startswith(("404", "429", "503"))]

    def take_turn(self, chance: random.Random | None = None) -> str | None:
        """Have a turn, and return its id if it was acknowledged."""
        question = f"[web] write f{(chance or self._chance).randrange(1000)}(xs): sum of xs"
        messages = [{"role": "user", "content": question}]
        answer = self._ask("/v1/chat/completions", {"model": "onward-tiny", "messages": messages, "max_tokens": 12})
        if answer is None or not answer["onward"]["logged"]:
            return None
        inference_id = str(answer["onward"]["inference_id"])
        self.inference_ids.append(inference_id)
        return inference_id

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over.is_set():
            inference_id = self.take_turn(chance)
            if inference_id is not None:
                self._tell(inference_id, chance.choice(("accepted", "rejected")))

    def _tell(self, inference_id: str, metric: str) -> None:
        """Send an outcome until it is acknowledged, as clients do: with the same id, so that it counts once."""
        feedback = {
            "feedback_id": str(uuid.uuid4()),
            "inference_id": inference_id,
            "metric_name": metric,
            "value": True,
        }
        while not self._over.is_set():
            if self._ask("/v1/feedback", feedback) is not None:
                self.outcome_ids.append(feedback["feedback_id"])
                return

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request; return None if it was not acknowledged."""
        try:
            return ask(self._url + path, self._key, body)
        except Refused as refused:
            self.refused[str(refused)[:200]] += 1
            self._over.wait(0.2)
            self._url = self._stack.address("gateway", 8700, missing=self._url)
            return None

    def check_kept(self, *, trained: bool = True) -> dict[str, Any]:
        """Assert that everything acknowledged is stored once, and that everything trained was trained once."""
        assert self.turns, self.refused
        report: dict[str, Any] = {}

        def is_kept() -> bool:
            report.update(self._stack.report(self.inference_ids, self.outcome_ids))
            missing = report["missing_turns"] or report["missing_outcomes"] or report["unrewarded"]
            return not missing and (not trained or report["updates"] > 0)

        wait_for(is_kept, _PATIENCE_S, lambda: f"what was acknowledged ({report}, {self.refused})")
        assert report["twice"] == []
        return report
