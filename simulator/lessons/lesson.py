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
_LOOK_S = 0.1  # for a version that is waited for
_TIMEOUT = aiohttp.ClientTimeout(total=600)  # a large model on a busy machine takes its time


@dataclass(frozen=True)
class Plan:
    """The options of one lesson."""

    base_urls: tuple[str, ...]  # replicas of the service
    seconds: float  # of teaching
    seed: int
    examined: int = 96  # answers of each examination
    users: int = 8  # who ask at the same time
    model: str = "onward-tiny"  # the name that clients use
    pace: "Pace | None" = None  # None: users ask as fast as they are answered


@dataclass(frozen=True)
class Pace:
    """How far users may be ahead of the learner, so that what is learned does not depend on the machine's speed.

    They ask `turns_a_version` exercises for each version that there has been, and `ahead` more. What an answer was
    worth they say once `late` more have come, and never where those do not come."""

    turns: int  # of teaching, at most
    turns_a_version: int
    ahead: int
    late: int = 0


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
    words: str | None = None  # what the user says of it


@dataclass
class Record:
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
    def __init__(self, plan: Plan, subject: Subject, http: aiohttp.ClientSession) -> None:
        self.plan = plan
        self.subject = subject
        self.record = Record()
        self.phase: Phase = "before"
        self.versions = 0  # that came since the beginning, as `follow` is told
        self._asked = 0  # of what is taught
        self._unsaid: deque[Answered] = deque()  # the oldest first
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
        """Ask one exercise after the other, and say of each answer, or of one before it, whether it was right."""
        while await self._may_ask(until_s):
            answered = await self._answered(next(exercises), "taught")
            if answered is not None:
                self._unsaid.append(answered)
                if len(self._unsaid) > (0 if self.plan.pace is None else self.plan.pace.late):
                    known = self._unsaid.popleft()
                    await asyncio.sleep(self._rng.expovariate(1 / MEAN_DELAY_S))
                    await self._tell(known)

    async def _may_ask(self, until_s: float) -> bool:
        """Wait for the turn of the next exercise; False where there is none, or no time for it."""
        pace = self.plan.pace
        if pace is not None and self._asked >= pace.turns:
            return False
        self._asked += 1
        number = self._asked
        while pace is not None and number > self.versions * pace.turns_a_version + pace.ahead:
            if self.elapsed_s >= until_s:
                return False
            await asyncio.sleep(_LOOK_S)
        return self.elapsed_s < until_s

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
        text = told["choices"][0]["message"]["content"] or ""
        right = await exercise.right(text)
        says = phase == "taught" and not right and exercise.fault is not None
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
            words=await exercise.fault(text) if says and exercise.fault is not None else None,
        )
        self.record.answers.append(answered)
        return answered

    async def _tell(self, answered: Answered) -> None:
        """Say what is wrong with an answer, if the user says that, and then whether it was right."""
        if answered.words is not None:
            await self._give(answered, "comment", answered.words)
        await self._give(answered, "accepted" if answered.right else "rejected", True)

    async def _give(self, answered: Answered, metric: str, value: bool | str) -> None:
        """Give feedback under an id of the user's own, so that a retry is not counted twice."""
        feedback_id = str(uuid.uuid4())
        about = {"feedback_id": feedback_id, "inference_id": answered.inference_id}
        body = {**about, "metric_name": metric, "value": value}
        for _ in range(_TRIES):
            try:
                await self._client.post("/v1/feedback", body)
                self.record.outcome_ids[feedback_id] = answered.session_id
                return
            except RequestFailed as failure:
                self.record.failures.append(str(failure))
                if failure.status is not None and failure.status < 500:
                    return  # a retry would be refused again
