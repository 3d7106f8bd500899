"""The facts of a request beside its prompt: its caller, session, workload and consent."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from api.access.clients import client_of
from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.low_priority import priority_of
from api.http.asgi import Headers, header_text, hint_text
from api.redaction.redaction import Redaction
from api.requests.bodies import GenerationBody, TurnType
from api.turns.histories.own_requests import own_request
from api.turns.histories.retries import is_retry
from api.turns.session_ids import is_id, session_hint
from api.turns.speakers import cache_scope, speaker_of
from core import telemetry
from core.errors import InvalidRequest, NotFound
from core.events import Environment, Priority, Purpose
from core.ids import SessionId, UserHash
from core.operations.consents import ConsentSubject
from core.settings import WORKLOAD_NAME
from core.tracing import Caller, caller_of, is_on

_WORKLOAD = re.compile(WORKLOAD_NAME)
_PURPOSES: dict[str, Purpose] = {"main": "turn", "side": "side", "summary": "summary"}
PROCESSING_PURPOSE: Final = "processing_purpose"
"""The tag of a turn that says what it is processed for."""
_MAX_TAGS = 16
_MAX_TAG_CHARACTERS = 512
_MAX_HARNESS_CHARACTERS = 200
_IMAGE = re.compile("(sha256|blake3):[0-9a-f]{64}|sha512:[0-9a-f]{128}")  # as container registries write digests


class Intake(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    identity: Identity
    received_at: datetime
    started_s: float  # monotonic
    session_id: SessionId | None  # as given; None if it is to be inferred
    user_id: UserHash | None
    workload: str
    purpose: Purpose
    purpose_said: bool  # by the client; else it may be known from the prompt
    session_hint: SessionId | None  # by the client's own header or field: see `session_ids`
    is_retry: bool  # the client says that it has sent the same request before, and got no answer
    client: str
    harness_version: str | None
    environment_image: str | None
    environment: Environment
    priority: Priority
    learn: bool
    store: bool  # False if no words of the turn may be stored
    session_done: bool
    tags: dict[str, str]
    caller: Caller | None = None  # the span of whoever asked, while turns are traced
    retrievable: bool = True  # False: no later request may get the answer by its id

    @property
    def speaker(self) -> str | None:
        return speaker_of(self.user_id, self.identity.key_id)

    @property
    def cache_scope(self) -> str:
        is_shared = self.identity.shares_prefixes
        return cache_scope(self.identity.namespace, None if is_shared else self.speaker)

    @property
    def named_session(self) -> SessionId | None:
        """The session that the client names, by an id or by a hint."""
        return self.session_id or self.session_hint


def take_in(
    context: ApiContext,
    identity: Identity,
    headers: Headers,
    body: GenerationBody,
    turn_type: TurnType | None,
    workload: str,
    purpose: Purpose | None = None,
    hint: SessionId | None = None,
) -> Intake:
    """Read a request's intake. Raises RequestError naming the header or field at fault.

    `purpose` overrides what the turn type says; `hint` is the session that the body names, unless a header does."""
    services, keys = context.services, context.keys
    check_model(body.model, services.model_name)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: allowed only with stream", param="stream_options")
    stated = services.privacy.purposes_in(identity.namespace)
    tags = _with_processing_purpose(headers, _tags(body.metadata), stated)
    kind = _one(header_text(headers, b"x-turn-type"), turn_type, "turn_type")
    stored = _stored(headers, body.store)
    return Intake(
        identity=identity,
        received_at=services.clock.now(),
        started_s=services.clock.monotonic(),
        session_id=_session(headers, body),
        user_id=keys.user_of(identity, body.user),
        workload=_workload(headers, tags) or workload,
        purpose=purpose or _purpose(kind or "main"),
        purpose_said=(purpose or kind) is not None,
        session_hint=session_hint(headers) or hint,
        is_retry=is_retry(headers),
        client=client_of(hint_text(headers, b"user-agent")),
        harness_version=_harness(headers),
        environment_image=_image(headers),
        environment=_environment(headers) or services.settings.advanced.environment,
        priority=priority_of(headers, body.service_tier),
        learn=_learn(headers, stored),
        store=stored,
        session_done=_flag(headers, b"x-session-done", body.session_done, "session_done"),
        tags=tags,
        caller=caller_of(hint_text(headers, b"traceparent")) if is_on() else None,
    )


def subjects_of(intake: Intake, session_id: SessionId) -> list[ConsentSubject]:
    """Return those whose consent a turn of this session needs."""
    namespace = intake.identity.namespace
    session = ConsentSubject(namespace, "session", session_id)
    return [session] if intake.user_id is None else [session, ConsentSubject(namespace, "user", intake.user_id)]


def with_purpose(intake: Intake, messages: Sequence[Mapping[str, Any]]) -> Intake:
    """Return the intake with the purpose that the request's prompt shows, unless the client has said it."""
    kind = None if intake.purpose_said else own_request(messages)
    if kind is None:
        return intake
    telemetry.OWN_REQUESTS.labels(kind.name).inc()
    return msgspec.structs.replace(intake, purpose=kind.purpose)


def redacted_intake(intake: Intake, redaction: Redaction) -> Intake:
    """Return the intake with what its client wrote into it redacted: its tags, and the name of its harness."""
    harness = intake.harness_version
    return msgspec.structs.replace(
        intake,
        tags={redaction.text(name): redaction.text(value) for name, value in intake.tags.items()},
        harness_version=None if harness is None else redaction.text(harness),
    )


def check_id(value: str, field: str) -> str:
    if not is_id(value):
        raise InvalidRequest(f"{field}: 1 to 128 of the characters A-Z, a-z, 0-9 and . _ : @ / -", param=field)
    return value


def _session(headers: Headers, body: GenerationBody) -> SessionId | None:
    given = _one(header_text(headers, b"x-session-id"), body.session_id, "session_id")
    return None if given is None else SessionId(check_id(given, "session_id"))


def _one(header: str | None, field: str | None, name: str) -> str | None:
    """Return a value that header and body may both give, if they agree."""
    if header is not None and field is not None and header != field:
        raise InvalidRequest(f"{name}: differs from the header; give one of them", param=name)
    return field if header is None else header


def _purpose(turn_type: str) -> Purpose:
    if turn_type not in _PURPOSES:
        raise InvalidRequest("turn_type: must be one of main, side, summary", param="turn_type")
    return _PURPOSES[turn_type]


def _workload(headers: Headers, tags: dict[str, str]) -> str | None:
    given = _one(header_text(headers, b"x-onward-workload"), tags.get("workload"), "metadata.workload")
    if given is not None and not _WORKLOAD.fullmatch(given):
        raise InvalidRequest("workload: 1 to 64 of the characters a-z, 0-9, _ . -", param="metadata.workload")
    return given


def _with_processing_purpose(headers: Headers, tags: dict[str, str], stated: Mapping[str, str]) -> dict[str, str]:
    """Return the tags with the purpose for which the turn is processed, which is one that its namespace states."""
    header = f"x-onward-{PROCESSING_PURPOSE.replace('_', '-')}"
    field = f"metadata.{PROCESSING_PURPOSE}"
    given = header_text(headers, header.encode())
    purpose = _one(given, tags.get(PROCESSING_PURPOSE), field)
    if purpose is None or (not stated and given is None):
        return tags  # where nothing is stated, a tag of that name is one like any other
    if purpose not in stated:
        known = f"is none of those that this namespace states: {', '.join(stated)}" if stated else "none is stated here"
        raise InvalidRequest(f"{field}: {known}", param=field)
    return {**tags, PROCESSING_PURPOSE: purpose}


def _environment(headers: Headers) -> Environment | None:
    match header_text(headers, b"x-onward-environment"):
        case None:
            return None
        case "simulated":
            return "simulated"
        case "production":
            return "production"
        case _:
            raise InvalidRequest("x-onward-environment: must be simulated or production", param="x-onward-environment")


def _harness(headers: Headers) -> str | None:
    harness = header_text(headers, b"x-onward-harness")
    if harness is not None and len(harness) > _MAX_HARNESS_CHARACTERS:
        raise InvalidRequest(
            f"x-onward-harness: more than {_MAX_HARNESS_CHARACTERS} characters", param="x-onward-harness"
        )
    return harness


def _image(headers: Headers) -> str | None:
    name = "x-onward-environment-image"
    digest = header_text(headers, name.encode())
    if digest is not None and not _IMAGE.fullmatch(digest):
        raise InvalidRequest(f"{name}: want a digest, as sha256:… (64 hexadecimal digits)", param=name)
    return digest


def _stored(headers: Headers, store: bool | None) -> bool:
    """Return whether the turn's words may be stored; either way of refusing is enough."""
    return _flag(headers, b"x-onward-store", None, "x-onward-store", default=True) and store is not False


def _learn(headers: Headers, stored: bool) -> bool:
    """Return whether the turn may be learned from; either way of withdrawing consent is enough."""
    return _flag(headers, b"x-onward-learn", None, "x-onward-learn", default=True) and stored


def refuse_if_strict(headers: Headers, ignored: Sequence[str]) -> None:
    """Raise InvalidRequest where something of a request is ignored, and the request asks to be refused then."""
    if ignored and _flag(headers, b"x-onward-strict", None, "x-onward-strict"):
        message = f"{ignored[0]}: changes nothing here, and x-onward-strict asks to refuse what is ignored"
        raise InvalidRequest(message, param=ignored[0], code="ignored_field")


def _flag(headers: Headers, name: bytes, field: bool | None, param: str, default: bool = False) -> bool:
    text = header_text(headers, name)
    if text is None:
        return default if field is None else field
    if text.lower() not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{param}: must be true or false", param=param)
    return text.lower() in ("true", "1") or bool(field)


def _tags(metadata: dict[str, str] | None) -> dict[str, str]:
    tags = metadata or {}
    if len(tags) > _MAX_TAGS:
        raise InvalidRequest(f"metadata: more than {_MAX_TAGS} entries", param="metadata")
    for name, value in tags.items():
        if not 0 < len(name) <= 64 or len(value) > _MAX_TAG_CHARACTERS:
            raise InvalidRequest(
                f"metadata: names of 1 to 64 and values of at most {_MAX_TAG_CHARACTERS} characters", param="metadata"
            )
    return tags


def check_model(asked: str, served: str) -> None:
    """Raise NotFound, which says what to send instead, unless `asked` is the one model that is served."""
    if asked != served:
        message = f"model: {asked!r} does not exist here; this service serves {served!r}"
        raise NotFound(message, param="model", code="model_not_found")
