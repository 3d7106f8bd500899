"""The route `POST /v1/completions`: inline suggestions, captured like every other turn."""

from collections.abc import Sequence
from functools import partial

import msgspec

from api.access.clients import count_ignored
from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.http.body_shape import Raw
from api.http.foreign import decode_foreign
from api.protocols.openai.answers import TextChoice, TextCompletion, text_logprobs, usage_of
from api.protocols.openai.exchange import ChoicesExchange
from api.protocols.sampling import (
    check_choices,
    check_generation,
    ignored_options,
    overrule,
    room_for_answer,
    sampling_of,
)
from api.protocols.streaming import event
from api.redaction.places import RedactedTexts
from api.redaction.redaction import Redaction
from api.requests.bodies import CompletionBody, completion_decoder
from api.requests.ignored import named
from api.turns.answer_ids import TEXT
from api.turns.intake import redacted_intake, refuse_if_strict, take_in
from api.turns.rendering import Rendering, away_if_large, read_large_apart
from api.turns.sessions import place_text, take_session
from api.turns.turn import Turn, TurnDelta, TurnPlan
from core import codec
from core.errors import InvalidRequest
from core.ids import new_group_id

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


async def plan_completion(context: ApiContext, identity: Identity, headers: Headers, raw: Raw) -> "CompletionExchange":
    """Plan the turns of a completion request. Raises RequestError naming what is wrong with the request."""
    read = partial(decode_foreign, completion_decoder, raw)
    body, unknown = await read_large_apart(context, "completion", raw, read)
    return CompletionExchange(context, await plan_text(context, identity, headers, body, len(raw), unknown), body)


async def plan_text(
    context: ApiContext,
    identity: Identity,
    headers: Headers,
    body: CompletionBody,
    body_bytes: int,
    left_out: Sequence[str] = (),
) -> TurnPlan:
    """Plan the turns that continue a text; `left_out` are fields that a translator ignored.

    Raises RequestError naming the field at fault."""
    intake = take_in(context, identity, headers, body, None, workload="suggestion", purpose="suggestion")
    services = context.services
    check_choices(body, body_bytes, services.settings.bodies.max_bytes)
    prompt, suffix, ignored = prompt_of(body), body.suffix, named([*left_out, *ignored_options(body)])
    redaction = context.redactors.begin(identity.namespace, intake.speaker)
    if redaction is not None:
        work = partial(_redact, redaction, body, prompt)
        prompt, suffix = await away_if_large(context, identity, body_bytes, work)
        intake, ignored = redacted_intake(intake, redaction), tuple(map(redaction.text, ignored))
    refuse_if_strict(headers, ignored)
    count_ignored(intake.client, ignored)
    place = await place_text(services, Rendering(context, body_bytes), intake, prompt, suffix)
    prompt_tokens, context_length = len(place.prompt_token_ids), services.policy.context_length
    if not prompt_tokens:
        raise InvalidRequest("prompt: it is empty, and a text needs a beginning", param="prompt", code="empty_prompt")
    default = services.settings.advanced.default_max_tokens
    rules = services.settings.workloads.get(intake.workload)
    max_tokens = room_for_answer(prompt_tokens, context_length, body.max_tokens, "max_tokens", default, "prompt", rules)
    sampling, overridden = overrule(sampling_of(body, max_tokens), rules, place.session_id)
    message = {"role": "prompt", "content": prompt}
    if suffix is not None:
        message["suffix"] = suffix
    await take_session(services, intake, place.session_id)
    return TurnPlan(
        intake=intake,
        place=place,
        assignment=services.traffic.assign(intake.user_id or place.session_id),
        group_id=new_group_id(),
        messages=(message,),
        sampling=sampling,
        overridden=overridden,
        ignored=ignored,
        top_logprobs=body.logprobs or 0,
        redaction=redaction,
    )


def _redact(redaction: Redaction, body: CompletionBody, prompt: str) -> tuple[str, str | None]:
    """Return prompt and suffix without what is to be redacted; the body's stop strings lose it in place."""
    prompt, *suffix = redaction.all([prompt] if body.suffix is None else [prompt, body.suffix])
    places = RedactedTexts()
    places.add(body, "stop")
    places.redact(redaction)
    return prompt, suffix[0] if suffix else None


def prompt_of(body: CompletionBody) -> str:
    """Return the text to continue. Raises InvalidRequest for what is none, or more than one."""
    check_generation(body)
    if body.echo:
        raise InvalidRequest("echo: put the prompt before the answer yourself", param="echo", code="unsupported")
    if body.best_of not in (None, 1):
        raise InvalidRequest("best_of: ask for n answers and choose one", param="best_of", code="unsupported")
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1:
        raise InvalidRequest("prompt: one text; send one request for each", param="prompt", code="unsupported")
    if not isinstance(prompts[0], str):
        raise InvalidRequest("prompt: send text; the service makes the tokens", param="prompt", code="unsupported")
    return prompts[0]


class CompletionExchange(ChoicesExchange):
    """The answers to one raw completion request."""

    protocol = "completions"
    id_prefix = TEXT

    def __init__(self, context: ApiContext, plan: TurnPlan, body: CompletionBody) -> None:
        super().__init__(context, plan, body)
        self._logprobs = body.logprobs is not None

    def answer(self) -> bytes:
        choices = [
            TextChoice(
                index=turn.choice,
                text=turn.text,
                logprobs=text_logprobs(self.renderer, turn, 0, len(turn.capture.token_ids)) if self._logprobs else None,
                finish_reason=turn.finish_reason,
                onward=self.own_info(turn),
            )
            for turn in self.turns
        ]
        return _encode(self._completion(choices, with_info=True, with_usage=True))

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        if not (delta.content or (self._logprobs and delta.token_end > delta.token_start)):
            return b""
        logprobs = text_logprobs(self.renderer, turn, delta.token_start, delta.token_end) if self._logprobs else None
        choice = TextChoice(
            index=turn.choice, text=delta.content, logprobs=logprobs, finish_reason=None, onward=self.name(turn)
        )
        return event(_encode(self._completion([choice])))

    def final_event(self, turn: Turn) -> bytes:
        choice = TextChoice(index=turn.choice, text="", finish_reason=turn.finish_reason, onward=self.own_info(turn))
        return event(_encode(self._completion([choice], with_info=True)))

    def usage_event(self) -> bytes:
        return event(_encode(self._completion([], with_info=True, with_usage=True)))

    def _completion(
        self, choices: list[TextChoice], *, with_info: bool = False, with_usage: bool = False
    ) -> TextCompletion:
        completion = TextCompletion(id=self.id, created=self.created, model=self.model, choices=choices)
        if with_info:
            completion.onward = self.shared_info()
        if with_usage:
            completion.usage = usage_of(self.turns)
        return completion
