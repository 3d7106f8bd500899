"""The plan of a chat's turns, whatever protocol asked for them: translators say what they were sent as a `ChatBody`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.access.clients import count_ignored
from api.access.context import ApiContext
from api.access.identity import Identity
from api.http.asgi import Headers
from api.protocols.sampling import (
    check_choices,
    check_generation,
    ignored_options,
    overrule,
    room_for_answer,
    sampling_of,
)
from api.redaction.redaction import Redaction
from api.requests.bodies import ChatBody
from api.requests.constraints import check_wanted, ignored_in_wanted, wanted_of
from api.requests.ignored import named
from api.requests.messages import canonical, check_messages, ignored_in, late_system
from api.requests.redacted import redact_chat
from api.requests.tools import check_tools, ignored_in_tools
from api.turns.grammars import grammar_of
from api.turns.histories.retries import first_try, request_mark
from api.turns.intake import Intake, redacted_intake, refuse_if_strict, take_in, with_purpose
from api.turns.rendering import Rendering
from api.turns.sessions import find_place, marks_shown, take_session
from api.turns.transcripts import Transcript
from api.turns.turn import TurnPlan
from core.errors import InvalidRequest
from core.events import Completion
from core.grammars.wanted import WantedAnswer
from core.ids import SessionId, new_group_id


@dataclass(frozen=True)
class CheckedChat:
    """A chat request, checked. `messages` are stored, `shown` are what the model sees.

    `marks`: by which its history may show its place; `wanted`: what its answer must be, None for one that is free;
    `redaction`: of its words, None where nothing is redacted; `after`: the turn behind which it stands by the client's
    own word, None where its history is to tell."""

    body: ChatBody
    intake: Intake
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    shown: list[dict[str, Any]]
    transcript: Transcript
    marks: list[str]
    ignored: tuple[str, ...]
    wanted: WantedAnswer | None
    redaction: Redaction | None = None
    after: Completion | None = None


def understand(
    context: ApiContext,
    identity: Identity,
    headers: Headers,
    body: ChatBody,
    ignored: Sequence[str] = (),
    hint: SessionId | None = None,
) -> CheckedChat:
    """Check a request. Raises RequestError naming the field.

    `ignored` are fields that its translator left out, `hint` the session that it names beside headers."""
    intake = take_in(context, identity, headers, body, body.turn_type, workload="chat", hint=hint)
    check_messages(body.messages)
    unknown = ignored_in_wanted(body)
    _check_options(body)
    found = [*ignored, *ignored_options(body), *ignored_in(body.messages), *ignored_in_tools(body.tools or ())]
    found += unknown
    redaction = context.redactors.begin(identity.namespace, intake.speaker)
    if redaction is not None:
        redact_chat(body, redaction)
        intake = redacted_intake(intake, redaction)
        found = [redaction.text(name) for name in found]
    wanted, unforced = wanted_of(body, context.services.renderer.call_grammar_refused)
    _check_shown(context, body)
    names = named([*found, *unforced])
    refuse_if_strict(headers, names)
    count_ignored(intake.client, names)
    tools = tuple(msgspec.to_builtins(body.tools or ()))
    shown = [canonical(message) for message in body.messages]
    messages = tuple(msgspec.to_builtins(body.messages))
    intake = with_purpose(intake, shown)
    transcript = Transcript(shown, tools, intake.speaker)
    marks = marks_shown(intake, shown)
    return CheckedChat(body, intake, messages, tools, shown, transcript, marks, names, wanted, redaction)


async def plan_turns(context: ApiContext, asked: CheckedChat, body_bytes: int, *, shortened: bool = False) -> TurnPlan:
    """Find the session, render the prompt, and make the plan. Raises RequestError naming the field.

    `shortened`: more `max_tokens` than the context has room for are as many as it has, and the answer says so."""
    body, intake = asked.body, asked.intake
    services = context.services
    check_choices(body, body_bytes, services.settings.bodies.max_bytes)
    namespace = intake.identity.namespace
    mark = request_mark(asked.transcript.digest, intake.named_session)
    tried = await first_try(services, namespace, mark, intake.received_at) if intake.is_retry else None
    group_id = tried.group_id if tried else new_group_id()
    begun = tried.session_id if tried else None
    rendering = Rendering(context, body_bytes)
    told = asked.transcript, asked.tools, asked.marks
    place = await find_place(services, rendering, intake, group_id, *told, begun, asked.after)
    asked_by = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    prompt_tokens, context_length = len(place.prompt_token_ids), services.policy.context_length
    default = services.settings.advanced.default_max_tokens
    rules = services.settings.workloads.get(intake.workload)
    room = context_length - prompt_tokens
    is_cut = shortened and wanted is not None and wanted > room > 0
    wanted = room if is_cut else wanted
    max_tokens = room_for_answer(prompt_tokens, context_length, wanted, asked_by, default, "messages", rules)
    sampling, overridden = overrule(sampling_of(body, max_tokens), rules, place.session_id)
    if asked.wanted is not None:
        grammar = await grammar_of(
            services.renderer, asked.wanted, place.prompt_token_ids, intake.identity, intake.cache_scope
        )
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    await take_session(services, intake, place.session_id)
    return TurnPlan(
        intake=intake,
        place=place,
        assignment=services.traffic.assign(intake.user_id or place.session_id),
        group_id=group_id,
        messages=asked.messages,
        tools=asked.tools,
        sampling=sampling,
        overridden=("max_tokens", *overridden) if is_cut and "max_tokens" not in overridden else overridden,
        ignored=asked.ignored,
        transcript=asked.transcript,
        callable_tools=() if body.tool_choice == "none" else asked.tools,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        top_logprobs=body.top_logprobs or 0,
        redaction=asked.redaction,
        is_json=asked.wanted is not None and asked.wanted.schema is not None,
    )


def _check_shown(context: ApiContext, body: ChatBody) -> None:
    """Refuse what the model would not be shown. Raises InvalidRequest naming the field."""
    services = context.services
    reason = services.renderer.tools_refused
    if body.tools and reason is not None:
        raise InvalidRequest(
            f"tools: the model {services.model_name} cannot be shown tools: {reason}", param="tools", code="unsupported"
        )
    late, reason = late_system(body.messages), services.renderer.late_system_refused
    if late is not None and reason is not None:
        raise InvalidRequest(
            f"messages[{late}]: the model {services.model_name} cannot be shown a system message so late: {reason}; "
            "put it before all others",
            param=f"messages[{late}]",
            code="unsupported",
        )


def _check_options(body: ChatBody) -> None:
    check_tools(body.tools or ())
    check_generation(body)
    _check_of_former_apis(body)
    check_wanted(body)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: allowed only with logprobs", param="top_logprobs")
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise InvalidRequest(
            "max_completion_tokens: differs from max_tokens; give one of them", param="max_completion_tokens"
        )


def _check_of_former_apis(body: ChatBody) -> None:
    for name in ("functions", "function_call"):
        if getattr(body, name) not in (None, [], "auto", "none"):
            raise InvalidRequest(f"{name}: send tools and tool_choice instead", param=name, code="unsupported")
    if body.modalities is not None and body.modalities != ["text"]:
        raise InvalidRequest('modalities: must be ["text"], which is all that the model speaks', param="modalities")
