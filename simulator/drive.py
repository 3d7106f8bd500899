"""The arrival of users: a Poisson process, in which each has a session and gives feedback on it after a delay."""

import asyncio
import random
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

from simulator.exploits import NO_EXPLOIT, Exploit
from simulator.outcome.truth import Lived, Truth, window_s
from simulator.tasks.sampling import sample_task
from simulator.tasks.sandbox import ForkServer
from simulator.tasks.taste import SHIFTED, Taste
from simulator.users.client import Client, RequestFailed
from simulator.users.crowd import Crowd, CrowdOptions, User
from simulator.users.ide import REQUEST_TIMEOUT, EditorSession, Ide
from simulator.users.reports import UserReport, reports_of

MAX_SESSIONS = 256
_PAUSES_S = (0.0, 0.1, 0.5)  # before each try to give feedback


@dataclass(frozen=True)
class RunOptions:
    """The options of one run."""

    base_urls: tuple[str, ...]  # replicas of the service
    seconds: float
    rate: float  # sessions per second
    seed: int
    shift_at_s: float | None = None
    crowd: CrowdOptions = field(default_factory=CrowdOptions)
    exploit: Exploit = NO_EXPLOIT


class Driver:
    def __init__(self, traffic: RunOptions, http: aiohttp.ClientSession) -> None:
        self.traffic = traffic
        self.crowd = Crowd(traffic.crowd, traffic.seed)
        self.truth = Truth(window_s(traffic.rate))
        self._sandbox = ForkServer()
        self._ide = Ide(traffic.base_urls, http, self._sandbox)
        self._client = Client(traffic.base_urls, http, REQUEST_TIMEOUT)
        self._rng = random.Random(traffic.seed)
        self._running: set[asyncio.Task[None]] = set()
        self._started = 0.0
        self.started_at = datetime.now(UTC)  # of the first arrival

    @property
    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started if self._started else 0.0

    async def run(self) -> None:
        """Let users arrive until the time is over, and return when the last one has gone."""
        loop = asyncio.get_running_loop()
        self._started, self.started_at = loop.time(), datetime.now(UTC)
        next_arrival_s = 0.0
        try:
            while next_arrival_s < self.traffic.seconds:
                await asyncio.sleep(max(0.0, self._started + next_arrival_s - loop.time()))
                self._arrive(next_arrival_s)
                next_arrival_s += self._rng.expovariate(self.traffic.rate)
            while self._running:
                await asyncio.gather(*self._running)
        finally:
            await self._sandbox.close()

    def _arrive(self, at_s: float) -> None:
        rng = random.Random(self._rng.getrandbits(64))  # a user's luck does not depend on the others' timing
        user = self.crowd.arrives()
        if len(self._running) >= MAX_SESSIONS:
            self.truth.turned_away += 1
            return
        task = asyncio.create_task(self._live(at_s, rng, user))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def taste_at(self, moment_s: float) -> Taste:
        shift = self.traffic.shift_at_s
        return SHIFTED if shift is not None and moment_s >= shift else Taste()

    async def _live(self, at_s: float, rng: random.Random, user: User) -> None:
        taste = self.taste_at(at_s)
        task = sample_task(rng, "fix" if rng.random() < 0.5 else "write")
        session = EditorSession(task, user=user.name, environment=self.traffic.exploit.environment(task))
        try:
            await self._ide.work(session, taste, rng)
        except RequestFailed as failure:
            self.truth.failures.append(str(failure))
        said = self.crowd.says(user, session, reports_of(session, taste, rng))
        reports = self.traffic.exploit.reports(session, said)
        self.truth.lived.append(Lived(at_s, session, self.traffic.exploit.verdict(reports), user.kind, len(reports)))
        for report in reports:
            await asyncio.sleep(report.delay_s)
            await self._tell(session, report, user)
        if session.session_id is not None and not session.closed and session.ending != "failed":
            await self._end(session.session_id)

    async def _tell(self, session: EditorSession, report: UserReport, user: User) -> None:
        """Send one piece of feedback, under an id of the user's own, so that a retry is not counted twice.

        Each try that fails is a failed request."""
        assert session.session_id is not None
        about = (
            {"session_id": session.session_id}
            if session.task.kind == "fix"
            else {"inference_id": session.inference_ids[-1]}
        )
        feedback_id = str(uuid.uuid4())
        body = {"feedback_id": feedback_id, "metric_name": report.metric_name, "value": report.value, **about}
        if report.source is not None:
            body["source"] = report.source
        if session.user is not None:
            body["user"] = session.user
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await self._client.post("/v1/feedback", body)
                self.truth.outcome_ids[feedback_id] = session.session_id
                return
            except RequestFailed as failure:
                if failure.status == 429 and user.kind == "spammer":
                    self.truth.silenced += 1  # the limits are there to refuse spam
                    return
                self.truth.failures.append(str(failure))
                if failure.status is not None and failure.status < 500:
                    return  # a retry would be refused again

    async def _end(self, session_id: str) -> None:
        """End a session whose last turn could not know that it was the last."""
        try:
            await self._client.post(f"/v1/sessions/{session_id}/end", {})
        except RequestFailed as failure:
            self.truth.failures.append(str(failure))
