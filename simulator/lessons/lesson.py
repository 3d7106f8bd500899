"""A lesson: an examination on held-out exercises, users who teach the model by what they take, and the same again.

Nobody says anything about answers in an examination, and the service is told not to learn from them."""

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import aiohttp

from simulator.lessons.subject import Exercise, Subject
from simulator.users.client import Client, RequestFailed

Phase = Literal["before", "taught", "after"]

MEAN_DELAY_S = 1.5  # until a user says whether the answer was right
_TRIES = 3  # to give feedback
_TIMEOUT = aiohttp.ClientTimeout(total=600)  # a large model on a busy machine takes its time


@dataclass(frozen=True)
class LessonOptions:
    """The options of one lesson."""

    base_urls: tuple[str, ...]  # replicas of the service
    seconds: float  # of teaching
    seed: int
    examined: int = 96  # answers of each examination
    users: int = 8  # who ask at the same time
    model: str = "onward-tiny"  # the name that clients use


@dataclass(frozen=True)
class Answered:
    phase: Phase
    kind: str
    at_s: float  # since the beginning
    right: bool
    session_id: str
    inference_id: str
    version: int
    latency_s: float
    tokens: int


@dataclass
class LessonRecord:
    """The users' notes on a lesson; the service is told nothing of them but feedback."""

    answers: list[Answered] = field(default_factory=list)
    outcome_ids: dict[str, str] = field(default_factory=dict)  # acknowledged: feedback id to session id
    failures: list[str] = field(default_factory=list)

    def of(self, phase: Phase) -> list[Answered]:
        return [answered for answered in self.answers if answered.phase == phase]

    def acknowledged(self) -> dict[str, list[str]]:
        """Return, for each session, the ids of the turns and outcomes that the service acknowledged."""
        ids = {answered.session_id: [answered.inference_id] for answered in self.answers}
        for outcome_id, session_id in self.outcome_ids.items():
            ids[session_id].append(outcome_id)
        return ids


class Lesson:
    def __init__(self, plan: LessonOptions, subject: Subject, http: aiohttp.ClientSession) -> None:
        self.plan = plan
        self.subject = subject
        self.record = LessonRecord()
        self.phase: Phase = "before"
        self._client = Client(plan.base_urls, http, _TIMEOUT)
        self._rng = random.Random(f"lesson {plan.seed}")
        self._started_s = asyncio.get_running_loop().time()

    @property
    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s

    async def run(self) -> None:
        """Examine, teach, and examine again with the same exercises."""
        await self._examine("before")
        await self._teach()
        await self._examine("after")

    async def _examine(self, phase: Phase) -> None:
        self.phase = phase
        waiting = deque(self.subject.held_out(self.plan.examined, self.plan.seed))

        async def sit() -> None:
            while waiting:
                await self._answered(waiting.popleft(), phase)

        await asyncio.gather(*(sit() for _ in range(self.plan.users)))

    async def _teach(self) -> None:
        self.phase = "taught"
        exercises, until_s = self.subject.taught(self.plan.seed), self.elapsed_s + self.plan.seconds
        await asyncio.gather(*(self._use(exercises, until_s) for _ in range(self.plan.users)))

    async def _use(self, exercises: Iterator[Exercise], until_s: float) -> None:
        """Ask one exercise after the other, and say of each answer whether it was right."""
        while self.elapsed_s < until_s:
            answered = await self._answered(next(exercises), "taught")
            if answered is not None:
                await asyncio.sleep(self._rng.expovariate(1 / MEAN_DELAY_S))
                await self._tell(answered)

    async def _answered(self, exercise: Exercise, phase: Phase) -> Answered | None:
        """Ask one exercise; None where the request failed."""
        body = {
            "model": self.plan.model,
            "messages": [{"role": role, "content": content} for role, content in exercise.messages],
            "max_tokens": self.subject.max_tokens,
            "temperature": 1.0,
        }
        if self.subject.stop:
            body["stop"] = list(self.subject.stop)
        headers = {"x-onward-workload": self.subject.workload, "x-onward-environment": "simulated"}
        headers |= {"x-session-done": "true", "x-onward-learn": "true" if phase == "taught" else "false"}
        asked_s = self.elapsed_s
        try:
            told = await self._client.post("/v1/chat/completions", body, headers)
        except RequestFailed as failure:
            self.record.failures.append(str(failure))
            return None
        latency_s = self.elapsed_s - asked_s
        right = await exercise.right(told["choices"][0]["message"]["content"] or "")
        onward = told["onward"]
        answered = Answered(
            phase=phase,
            kind=exercise.kind,
            at_s=asked_s,
            right=right,
            session_id=onward["session_id"],
            inference_id=onward["inference_id"],
            version=onward["policy_version"],
            latency_s=latency_s,
            tokens=told["usage"]["completion_tokens"],
        )
        self.record.answers.append(answered)
        return answered

    async def _tell(self, answered: Answered) -> None:
        """Say whether the answer was right, under an id of the user's own, so that a retry is not counted twice."""
        feedback_id, metric = str(uuid.uuid4()), "accepted" if answered.right else "rejected"
        body = {"feedback_id": feedback_id, "inference_id": answered.inference_id, "metric_name": metric, "value": True}
        for _ in range(_TRIES):
            try:
                await self._client.post("/v1/feedback", body)
                self.record.outcome_ids[feedback_id] = answered.session_id
                return
            except RequestFailed as failure:
                self.record.failures.append(str(failure))
                if failure.status is not None and failure.status < 500:
                    return  # a retry would be refused again
