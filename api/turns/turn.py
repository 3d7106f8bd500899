"""One turn: it is generated, parsed and logged, and only then reported as finished."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from api.access.context import ApiContext
from api.access.quotas.limits import TURNS
from api.redaction.redaction import Redaction
from api.requests.wording import Wording
from api.turns.capture import Capture
from api.turns.histories.retold import marks_of_turn
from api.turns.histories.retries import request_mark
from api.turns.intake import Intake
from api.turns.private.client_words import ClientWords
from api.turns.private.resting import why_not_at_rest
from api.turns.segments import answer_alone, segments_of, text_ends
from api.turns.sessions import SessionPosition, remember
from api.turns.transcripts import Transcript
from core import telemetry
from core.errors import EngineUnavailable, LogUnavailable, NotFinite
from core.events import (
    Arm,
    Completion,
    FinishReason,
    LogprobSpace,
    Protocol,
    Sampling,
    Segment,
    ToolCall,
    VersionSpan,
)
from core.grammars.sets import ATTACHMENT
from core.ids import UNKNOWN, GroupId, PolicyRef, new_inference_id
from core.operations.fleet import Assignment
from core.ports import GenerateRequest, TokenChunk
from core.tracing.answers import trace_answer
from core.unstored import NOT_STORED, without_words

COMPLETE: frozenset[FinishReason] = frozenset(("stop", "length", "tool_calls"))
_S_TO_MS = 1000.0
_SEEDS = 1 << 63  # of a choice beyond the last one the first follows


class TurnPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts that the choices of one request share.

    `transcript` is None where no next turn will look for this one; `overridden` names the fields of the sampling
    that are the operator's will and not the request's; `ignored` those of the request that change nothing;
    `callable_tools` is None where the prompt is no chat; `redaction` is None where nothing is redacted, and `values`
    are what the client gets in the place of placeholders; `is_json`: the text of its answers is."""

    intake: Intake
    place: SessionPosition
    assignment: Assignment
    group_id: GroupId
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    sampling: Sampling
    overridden: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    transcript: Transcript | None = None
    callable_tools: tuple[dict[str, Any], ...] | None = None
    parallel_tool_calls: bool = True
    has_instructions: bool = False
    top_logprobs: int = 0
    redaction: Redaction | None = None
    values: Mapping[str, str] = {}
    is_json: bool = False


class TurnDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The words of one choice in its output tokens [token_start, token_end)."""

    reasoning: str
    content: str
    tool_calls: list[ToolCall]
    token_start: int
    token_end: int


class Turn:
    """One choice. `run` it once; the fields then hold its result."""

    def __init__(self, context: ApiContext, plan: TurnPlan, choice: int, protocol: Protocol) -> None:
        services = context.services
        self.plan = plan
        self.choice = choice
        self.protocol: Protocol = protocol
        self.inference_id = new_inference_id(plan.place.session_id)
        self.capture = Capture()
        self.finish_reason: FinishReason | None = None
        self.delivered_tokens = 0
        self.not_finite: PolicyRef | None = None  # the version that computed numbers for it that are not finite
        self.logged = True
        self.untrainable_reasons: tuple[str, ...] = services.policy.untrainable(plan.sampling)
        if not plan.intake.store:
            self.untrainable_reasons += (NOT_STORED,)
        self.policy_versions: tuple[VersionSpan, ...] = ()
        self.segments: tuple[Segment, ...] = ()
        self._context = context
        self._services = services
        self._wording = Wording(
            services.renderer.parser(tools=plan.callable_tools, after=plan.place.prompt_token_ids),
            plan.sampling.stop,
            parallel_tool_calls=plan.parallel_tool_calls,
        )
        self._client_words = ClientWords(plan.values, is_json=plan.is_json) if plan.values else None
        self._read_tokens = 0
        self._asked_s = plan.intake.started_s  # monotonic: when the engine was asked

    @property
    def text(self) -> str:
        """The text for the client; so are thinking and calls. What is stored is what the model said."""
        return self._wording.text if self._client_words is None else self._client_words.content(self._wording.text)

    @property
    def reasoning(self) -> str:
        said = self._wording.reasoning
        return said if self._client_words is None else self._client_words.thinking(said)

    @property
    def tool_calls(self) -> list[ToolCall]:
        said = self._wording.tool_calls
        return said if self._client_words is None else self._client_words.calls(said)

    @property
    def thinking_tokens(self) -> int:
        """The number of tokens of its thinking, once it has run."""
        return sum(segment.end - segment.start for segment in self.segments if segment.kind == "thinking")

    @property
    def stop_string(self) -> str | None:
        said = self._wording.stop_string
        return said if said is None or self._client_words is None else self._client_words.thinking(said)

    async def run(self, notify: Callable[["Turn"], None] | None = None) -> None:
        """Generate and log the turn; on return it is durable, or marked as unlogged.

        `notify` is called when there are new tokens. A turn that is cancelled, or that the engine gave up, still
        logs what was sampled. Raises EngineUnavailable, and InvalidRequest for what the model cannot do."""
        try:
            await self._generate(notify)
        finally:
            failed = self.not_finite not in (None, UNKNOWN)
            if self.finish_reason is None and (self.capture.token_ids or failed or self._was_cancelled()):
                self.finish_reason = "abort" if self._was_cancelled() else "error"
                self._read()
                self._context.background.spawn(self._log())
        await self._log()
        if self.finish_reason not in COMPLETE:
            raise EngineUnavailable(f"the engine gave up the request ({self.finish_reason})")

    @staticmethod
    def _was_cancelled() -> bool:
        return isinstance(sys.exc_info()[1], asyncio.CancelledError)

    async def _generate(self, notify: Callable[["Turn"], None] | None) -> None:
        """Generate with the version of the user's arm, or with the live one where no engine has that."""
        version = self.plan.assignment.version
        self._asked_s = self._services.clock.monotonic()
        try:
            await self._generate_by(version, notify)
        except EngineUnavailable:
            if version is None or self.capture.token_ids:
                raise
            await self._generate_by(None, notify)

    async def _generate_by(self, version: PolicyRef | None, notify: Callable[["Turn"], None] | None) -> None:
        request = self._request(version, streamed=notify is not None or self._wording.must_follow)
        stream = cast("AsyncGenerator[TokenChunk, None]", self._services.policy.generate(request))
        clock, capture, wording = self._services.clock, self.capture, self._wording
        try:
            async for chunk in stream:
                capture.take(chunk, clock)
                if wording.must_follow:
                    self._read()
                if chunk.finish_reason is not None or wording.ended is not None:
                    self._finish(chunk.finish_reason)
                if notify is not None:
                    notify(self)
                if self.finish_reason is not None:
                    return
        except NotFinite as error:
            self.not_finite = error.version
            raise
        finally:
            await stream.aclose()
        raise EngineUnavailable("the engine's answer stopped without a finish reason")

    def _read(self) -> None:
        """Read the words of new tokens, when somebody wants them: many at once where they arrived at once."""
        if self._read_tokens < len(self.capture.token_ids):
            self._wording.read(self.capture.token_ids[self._read_tokens :])
            self._read_tokens = len(self.capture.token_ids)

    def _finish(self, reason: FinishReason | None) -> None:
        self._read()
        self._wording.close()
        engine_reason = "tool_calls" if reason == "stop" and self._wording.tool_calls else reason
        self.finish_reason = self._wording.ended or engine_reason

    def deliver(self) -> TurnDelta:
        """Return what is new; from now on it counts as delivered."""
        self._read()
        reasoning, content, calls = self._wording.take()
        if self._client_words is not None:
            is_last = self.finish_reason is not None
            reasoning, content, calls = self._client_words.part(reasoning, content, calls, is_last=is_last)
        start, self.delivered_tokens = self.delivered_tokens, self._read_tokens
        return TurnDelta(
            reasoning=reasoning, content=content, tool_calls=calls, token_start=start, token_end=self._read_tokens
        )

    def _request(self, version: PolicyRef | None, *, streamed: bool) -> GenerateRequest:
        plan = self.plan
        sampling = plan.sampling
        if self.choice and sampling.seed is not None:  # the choices of one seed must differ
            seed = sampling.seed + self.choice
            sampling = msgspec.structs.replace(sampling, seed=seed if seed < _SEEDS else seed - 2 * _SEEDS)
        return GenerateRequest(
            inference_id=self.inference_id,
            prompt_token_ids=plan.place.prompt_token_ids,
            sampling=sampling,
            stop_token_ids=self._services.renderer.stop_token_ids,
            top_logprobs=plan.top_logprobs,
            version=version,
            cache_key=plan.place.session_id,
            cache_scope=plan.intake.cache_scope,
            remember=plan.intake.store,
            priority=plan.intake.priority,
            streamed=streamed,
        )

    @property
    def policy_version(self) -> PolicyRef:
        """The version of the first token; before there is one, the live version."""
        first = self.capture.first_version
        return self._services.policy.live_version if first is None or first == UNKNOWN else first

    @property
    def arm(self) -> Arm:
        """The arm that served the turn: one whose version no engine has is served by the live version."""
        assignment = self.plan.assignment
        is_served = assignment.version is None or assignment.version == self.policy_version
        return assignment.arm if is_served else "live"

    @property
    def trainable(self) -> bool:
        return not self.untrainable_reasons

    async def _log(self) -> None:
        self.untrainable_reasons += self.capture.faults()
        if self.plan.sampling.grammar is not None and self.capture.grammar is None and self.capture.token_ids:
            self.untrainable_reasons += ("unknown_masks",)
        if self.finish_reason == "error":
            self.untrainable_reasons += ("error",) if self.not_finite is None else ("error", "not_finite")
        why = self._why_not_at_rest()
        if why is not None and why not in self.untrainable_reasons:
            self.untrainable_reasons += (why,)
        self.policy_versions = self.capture.version_spans()
        self.segments = self._segments()
        turn = self._record() if why is None else without_words(self._record(), why)
        spooled, log_began_at = False, self._services.clock.now()
        try:
            spooled = (await self._context.log.record(self.plan.intake.identity, turn)).offset < 0
        except asyncio.CancelledError:
            self._context.background.spawn(self._append_again(turn, log_began_at))
            raise
        except LogUnavailable:
            self.logged = False
            self.untrainable_reasons += ("unlogged",)
            telemetry.UNLOGGED_TURNS.inc()
        await remember(self._services, turn, self._marks(turn))
        if spooled:  # else feedback at another replica, which has neither log nor store to ask, would be refused
            await self._services.live_state.settle()
        self._count(turn)
        self._trace(turn, log_began_at)

    def _why_not_at_rest(self) -> str | None:
        plan, renderer = self.plan, self._services.renderer
        return why_not_at_rest(renderer, plan.redaction, self._wording, self.capture.token_ids, store=plan.intake.store)

    async def _append_again(self, turn: Completion, log_began_at: datetime) -> None:
        """Append the turn after a cancelled append, which may have succeeded.

        Readers know a turn by its id, so that twice counts once."""
        await self._context.log.record(self.plan.intake.identity, turn)
        await remember(self._services, turn, self._marks(turn))
        self._count(turn)
        self._trace(turn, log_began_at)

    def _trace(self, turn: Completion, log_began_at: datetime) -> None:
        intake, clock = self.plan.intake, self._services.clock
        trace_answer(turn, self._asked_s - intake.started_s, log_began_at, clock.now(), intake.caller)

    def _count(self, turn: Completion) -> None:
        self._context.turn_counter(turn.workload, turn.finish_reason).inc()
        self._services.live_state.count(turn.namespace, TURNS)
        if turn.priority == "normal":
            telemetry.TURN_SECONDS.observe(turn.latency_ms / _S_TO_MS)
        if turn.ttft_ms is not None and turn.priority == "normal":
            telemetry.FIRST_TOKEN_SECONDS.observe(turn.ttft_ms / _S_TO_MS)
        for reason in self.untrainable_reasons:
            telemetry.UNTRAINABLE_TURNS.labels(reason).inc()

    def _transcript_digest(self) -> str | None:
        transcript = self.plan.transcript
        return None if transcript is None else transcript.with_answer(self._wording.text, self._wording.tool_calls)

    def _marks(self, turn: Completion) -> tuple[str, ...]:
        transcript = self.plan.transcript
        if transcript is None or turn.transcript_digest is None:
            return ()
        intake = self.plan.intake
        marks = marks_of_turn(turn, transcript.messages, is_named=intake.session_id is not None)
        return (request_mark(transcript.digest, intake.named_session), *marks)

    def _segments(self) -> tuple[Segment, ...]:
        plan, token_ids = self.plan, self.capture.token_ids
        if not (self._wording.tool_calls or self._wording.has_thought):
            return answer_alone(token_ids)
        tools = plan.callable_tools or ()
        return segments_of(self._services.renderer, plan.place.prompt_token_ids, token_ids, tools)

    def _record(self) -> Completion:
        plan, intake, place, services = self.plan, self.plan.intake, self.plan.place, self._services
        assert self.finish_reason is not None
        now_s = services.clock.monotonic()
        capture, first_s = self.capture, self.capture.first_token_s
        return Completion(
            inference_id=self.inference_id,
            session_id=place.session_id,
            turn_index=place.turn_index,
            parent_id=place.parent_id,
            group_id=plan.group_id,
            namespace=intake.identity.namespace,
            user_id=intake.user_id,
            key_id=intake.identity.key_id,
            workload=intake.workload,
            purpose=intake.purpose,
            client=intake.client,
            protocol=self.protocol,
            ignored=plan.ignored,
            harness_version=intake.harness_version,
            environment_image=intake.environment_image,
            received_at=intake.received_at,
            messages=plan.messages,
            tools=plan.tools,
            sampling=plan.sampling,
            prompt_token_ids=place.prompt_token_ids,
            token_ids=tuple(capture.token_ids),
            segments=self.segments,
            logprobs=tuple(capture.logprobs),
            logprob_space=self._logprob_space(capture.attachments),
            trainable=self.trainable,
            untrainable_reasons=self.untrainable_reasons,
            policy=services.model_name,
            policy_versions=self.policy_versions,
            replica=capture.replica,
            experiment_id=plan.assignment.experiment_id,
            arm=self.arm,
            arm_assigned=plan.assignment.arm,
            propensity=plan.assignment.propensity,
            tokenizer_digest=services.renderer.tokenizer_digest,
            renderer=services.renderer.name,
            finish_reason=self.finish_reason,
            text=self._wording.text,
            text_ends=self._text_ends(),
            tool_calls=tuple(self._wording.tool_calls),
            broken_calls=self._wording.broken_calls,
            not_finite=self.not_finite,
            transcript_digest=self._transcript_digest(),
            delivered_tokens=len(capture.token_ids) if self.finish_reason in COMPLETE else self.delivered_tokens,
            ttft_ms=None if first_s is None else (first_s - intake.started_s) * _S_TO_MS,
            latency_ms=(now_s - intake.started_s) * _S_TO_MS,
            environment=intake.environment,
            priority=intake.priority,
            learn=intake.learn,
            session_done=intake.session_done,
            has_instructions=plan.has_instructions,
            retrievable=intake.retrievable,
            attachments=capture.attachments,
            tags=intake.tags,
        )

    def _text_ends(self) -> tuple[int, ...]:
        intake = self.plan.intake
        if not self._services.spec.rules(intake.workload, intake.identity.namespace).claims:
            return ()
        return text_ends(self._services.renderer, self.capture.token_ids, self.segments, self._wording.text)

    def _logprob_space(self, attachments: Mapping[str, str]) -> LogprobSpace:
        mask = ATTACHMENT if ATTACHMENT in attachments else None
        return LogprobSpace(temperature=self.plan.sampling.temperature, mask=mask, grammar=self.capture.grammar)
