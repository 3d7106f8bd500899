"""One turn: generate, parse, log, and only then say that it is finished."""

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import msgspec

from api.context import Context
from api.intake import Intake
from api.segments import segments_of
from api.sessions import Place, remember
from api.stops import StopCutter
from api.transcripts import Transcript
from core import telemetry
from core.errors import EngineUnavailable, LogUnavailable
from core.events import Completion, FinishReason, LogprobSpace, Sampling, ToolCall, Topic, VersionSpan
from core.ids import GroupId, Version, new_inference_id
from core.ports import GenerateRequest, OutputDelta, TokenChunk

COMPLETE: frozenset[FinishReason] = frozenset(("stop", "length", "tool_calls"))
_S_TO_MS = 1000.0


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the choices of one request share. `transcript` is None where no next turn will look for this one."""

    intake: Intake
    place: Place
    group_id: GroupId
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    sampling: Sampling
    transcript: Transcript | None = None
    parse_tools: bool = False
    parallel_tool_calls: bool = True
    top_logprobs: int = 0


class Delta(msgspec.Struct, kw_only=True):
    """What became known of one choice: text, calls, and that output tokens up to `token_end` are behind it."""

    choice: int
    content: str = ""
    tool_calls: list[ToolCall] = []
    token_end: int = 0

    def absorb(self, later: "Delta") -> None:
        self.content += later.content
        self.tool_calls += later.tool_calls
        self.token_end = later.token_end


class Turn:
    """One choice. `run` it once; the fields then say what came of it. `delivered_tokens` is for whoever sends."""

    def __init__(self, context: Context, plan: TurnPlan, choice: int) -> None:
        services = context.services
        self.plan = plan
        self.choice = choice
        self.inference_id = new_inference_id(plan.place.session_id)
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.text = ""
        self.tool_calls: list[ToolCall] = []
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0
        self.delivered_tokens = 0
        self.logged = True
        self.untrainable_reasons: tuple[str, ...] = services.policy.untrainable(plan.sampling)
        self._context = context
        self._services = services
        self._parser = services.renderer.parser(tools=plan.parse_tools)
        self._cutter = StopCutter(plan.sampling.stop)
        self._version_starts: list[tuple[int, Version]] = []
        self._first_token_s: float | None = None
        self._replica: str | None = None

    async def run(self, emit: Callable[[Delta], None]) -> None:
        """`emit` gets what is new as soon as it is sampled. On return the turn is durable, or marked as unlogged.

        Cancelled, or left by the engine, it still logs what was sampled. Raises EngineUnavailable, and InvalidRequest
        for what the model cannot do.
        """
        try:
            await self._generate(emit)
        finally:
            if self.finish_reason is None and (self.token_ids or self._was_cancelled()):
                self.finish_reason = "abort" if self._was_cancelled() else "error"
                self._context.background.spawn(self._log())
        await self._context.background.insist(self._log())
        if self.finish_reason not in COMPLETE:
            raise EngineUnavailable(f"the engine gave up the request ({self.finish_reason})")

    @staticmethod
    def _was_cancelled() -> bool:
        return isinstance(sys.exc_info()[1], asyncio.CancelledError)

    async def _generate(self, emit: Callable[[Delta], None]) -> None:
        stream = cast("AsyncGenerator[TokenChunk, None]", self._services.policy.generate(self._request()))
        try:
            async for chunk in stream:
                self._take(chunk)
                self._deliver(self._parser.feed(chunk.token_ids), emit)
                if chunk.finish_reason is not None:
                    self._deliver(self._parser.finish(), emit, last=True)
                    self._finish(chunk.finish_reason)
                if self.finish_reason is not None:
                    return
        finally:
            await stream.aclose()
        raise EngineUnavailable("the engine's answer has no end")

    def _request(self) -> GenerateRequest:
        plan = self.plan
        sampling = plan.sampling
        if self.choice and sampling.seed is not None:  # the choices of one seed must differ
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + self.choice)
        return GenerateRequest(
            inference_id=self.inference_id,
            prompt_token_ids=plan.place.prompt_token_ids,
            sampling=sampling,
            stop_token_ids=self._services.renderer.stop_token_ids,
            top_logprobs=plan.top_logprobs,
            cache_key=plan.place.session_id,
        )

    def _take(self, chunk: TokenChunk) -> None:
        """Exactly what was sampled, whatever becomes of its text."""
        if self._first_token_s is None:
            self._first_token_s = self._services.clock.monotonic()
            self.cached_tokens = chunk.cached_tokens or 0
            self._replica = chunk.replica
        if chunk.token_ids and (not self._version_starts or self._version_starts[-1][1] != chunk.version):
            self._version_starts.append((len(self.token_ids), chunk.version))
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.top_logprobs += chunk.top_logprobs

    def _deliver(self, parsed: OutputDelta, emit: Callable[[Delta], None], last: bool = False) -> None:
        content = self._cutter.feed(parsed.content)
        if last:
            content += self._cutter.finish()
        calls = [] if self._cutter.stopped else list(parsed.tool_calls)
        if calls and not self.plan.parallel_tool_calls:
            calls = calls[: 1 - len(self.tool_calls)]
        self.text += content
        self.tool_calls += calls
        emit(Delta(choice=self.choice, content=content, tool_calls=calls, token_end=len(self.token_ids)))
        if self._cutter.stopped:
            self.finish_reason = "stop"
        elif self.tool_calls and not self.plan.parallel_tool_calls:
            self.finish_reason = "tool_calls"

    def _finish(self, reason: FinishReason) -> None:
        if self.finish_reason is None:
            self.finish_reason = "tool_calls" if reason == "stop" and self.tool_calls else reason

    @property
    def policy_version(self) -> Version:
        """Of the first token; before there is one, of what serves."""
        return self._version_starts[0][1] if self._version_starts else self._services.policy.live_version

    @property
    def trainable(self) -> bool:
        return not self.untrainable_reasons

    def version_spans(self) -> tuple[VersionSpan, ...]:
        ends = [start for start, _ in self._version_starts[1:]] + [len(self.token_ids)]
        return tuple(
            VersionSpan(start=start, end=end, version=version)
            for (start, version), end in zip(self._version_starts, ends, strict=True)
        )

    def _capture_faults(self) -> tuple[str, ...]:
        faults = []
        if not self.token_ids:
            faults.append("no_tokens")
        if len(self.logprobs) != len(self.token_ids) or not all(map(math.isfinite, self.logprobs)):
            faults.append("missing_logprobs")
        if self.finish_reason == "error":
            faults.append("error")
        return tuple(faults)

    async def _log(self) -> None:
        self.untrainable_reasons += self._capture_faults()
        turn = self._record()
        try:
            await self._services.log.append(Topic.TURNS, turn)
        except LogUnavailable:
            self.logged = False
            self.untrainable_reasons += ("unlogged",)
            telemetry.UNLOGGED_TURNS.inc()
        await remember(self._services, turn)
        telemetry.TURNS.labels(self._context.workload_label(turn.workload), turn.finish_reason).inc()
        telemetry.TURN_SECONDS.observe(turn.latency_ms / _S_TO_MS)
        if turn.ttft_ms is not None:
            telemetry.FIRST_TOKEN_SECONDS.observe(turn.ttft_ms / _S_TO_MS)
        for reason in self.untrainable_reasons:
            telemetry.UNTRAINABLE_TURNS.labels(reason).inc()

    def _transcript_digest(self) -> str | None:
        transcript = self.plan.transcript
        return None if transcript is None else transcript.with_answer(self.text, self.tool_calls)

    def _record(self) -> Completion:
        plan, intake, place, services = self.plan, self.plan.intake, self.plan.place, self._services
        assert self.finish_reason is not None
        now_s = services.clock.monotonic()
        first_s = self._first_token_s
        return Completion(
            inference_id=self.inference_id,
            session_id=place.session_id,
            turn_index=place.turn_index,
            parent_id=place.parent_id,
            group_id=plan.group_id,
            namespace=intake.identity.namespace,
            user_id=intake.user_id,
            workload=intake.workload,
            purpose=intake.purpose,
            harness_version=intake.harness_version,
            received_at=intake.received_at,
            messages=plan.messages,
            tools=plan.tools,
            sampling=plan.sampling,
            prompt_token_ids=place.prompt_token_ids,
            token_ids=tuple(self.token_ids),
            segments=segments_of(services.renderer, self.token_ids, has_calls=bool(self.tool_calls)),
            logprobs=tuple(self.logprobs),
            logprob_space=LogprobSpace(temperature=plan.sampling.temperature),
            trainable=self.trainable,
            untrainable_reasons=self.untrainable_reasons,
            policy=services.model_name,
            policy_versions=self.version_spans(),
            replica=self._replica,
            tokenizer_digest=services.renderer.tokenizer_digest,
            renderer=services.renderer.name,
            finish_reason=self.finish_reason,
            text=self.text,
            tool_calls=tuple(self.tool_calls),
            transcript_digest=self._transcript_digest(),
            delivered_tokens=len(self.token_ids) if self.finish_reason in COMPLETE else self.delivered_tokens,
            ttft_ms=None if first_s is None else (first_s - intake.started_s) * _S_TO_MS,
            latency_ms=(now_s - intake.started_s) * _S_TO_MS,
            environment=intake.environment,
            learn=intake.learn,
            session_done=intake.session_done,
            tags=intake.tags,
        )
