"""The translation of a body's fields to `core.events.Sampling`, within the context and under the operator's rules."""

import hashlib

import msgspec

from api.access.low_priority import FLEX
from api.requests.bodies import MAX_STOPS, GenerationBody
from api.requests.ignored import take_ignored
from core.errors import InvalidRequest, TooLarge
from core.events import Sampling
from core.settings import WorkloadSettings
from core.temperature import TEMPERATURES, is_temperature

DEFAULT_TEMPERATURE = 1.0  # OpenAI's, and the only one at which logprobs need no rescaling
_OF_ZERO = frozenset(("zero_share", "zero_temperature"))
_NONE_WHEN_OFF = frozenset(("top_k", "min_p", "logit_bias"))


def sampling_of(body: GenerationBody, max_tokens: int) -> Sampling:
    """Return the sampling that the body asks for. Raises InvalidRequest naming the field."""
    return Sampling(
        temperature=_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=None if body.top_k is None or body.top_k < 1 else body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=max_tokens,
        stop=_stop(body.stop),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias),
    )


def overrule(asked: Sampling, rules: WorkloadSettings | None, session_id: str = "") -> tuple[Sampling, tuple[str, ...]]:
    """Return how a workload is really sampled, and the names of the fields that its rules changed.

    `max_tokens` is a bound, the other rules replace what was asked for. A session is of the share that is not sampled
    at temperature 0, or it is not, from its first request to its last."""
    if rules is None:
        return asked, ()
    wanted = {name: value for name, value in rules if value is not None and name not in _OF_ZERO}
    if asked.temperature == 0 and rules.zero_share is not None and _place(session_id) < rules.zero_share:
        wanted["temperature"] = rules.zero_temperature
    wanted["max_tokens"] = min(asked.max_tokens, wanted.get("max_tokens", asked.max_tokens))
    changed = {
        name: (value or None) if name in _NONE_WHEN_OFF else value
        for name, value in wanted.items()
        if (value or None) != (getattr(asked, name) or None)
    }
    return msgspec.structs.replace(asked, **changed), tuple(changed)


def _place(session_id: str) -> float:
    """Return a session's place in [0, 1), by which shares of sessions are cut off."""
    digest = hashlib.blake2b(b"zero_share\0" + session_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def room_for_answer(
    prompt_tokens: int,
    context_length: int,
    asked: int | None,
    asked_by: str,
    default: int,
    prompt_field: str,
    rules: WorkloadSettings | None,
) -> int:
    """Return the number of tokens that the answer would have but for the rules' bound.

    Raises InvalidRequest when the prompt does not fit, or what was asked for within that bound."""
    room = context_length - prompt_tokens
    if room < 1:
        raise _exceeded(context_length, prompt_tokens, max(1, asked or 1), prompt_field, prompt_field)
    if asked is None:
        return min(default, room)
    bound = asked if rules is None or rules.max_tokens is None else rules.max_tokens
    if min(asked, bound) > room:
        raise _exceeded(context_length, prompt_tokens, asked, prompt_field, asked_by)
    return asked


def _exceeded(context_length: int, prompt_tokens: int, asked: int, prompt_field: str, param: str) -> InvalidRequest:
    """Return the error in OpenAI's words, by which agents know that they are to shorten their history."""
    return InvalidRequest(
        f"This model's maximum context length is {context_length} tokens. However, you requested "
        f"{prompt_tokens + asked} tokens ({prompt_tokens} in the {prompt_field}, {asked} in the completion). Please "
        f"reduce the length of the {prompt_field} or completion.",
        param=param,
        code="context_length_exceeded",
    )


def check_generation(body: GenerationBody) -> None:
    """Check what chats and raw completions have in common. Raises InvalidRequest naming the field."""
    if body.repetition_penalty not in (None, 1.0):
        raise InvalidRequest(
            "repetition_penalty: must be 1; use frequency_penalty or presence_penalty",
            param="repetition_penalty",
            code="unsupported",
        )


def check_choices(body: GenerationBody, body_bytes: int, most_bytes: int) -> None:
    """Check that what a request says is not kept too often: each choice is a turn with all of it. Raises TooLarge."""
    choices = body.n or 1
    if choices > 1 and choices * body_bytes > most_bytes:
        what = f"n: {choices} choices keep a request of {body_bytes} bytes {choices} times, which is more than"
        raise TooLarge(f"{what} {most_bytes} bytes; ask for fewer, or send less", param="n", code="too_many_choices")


def ignored_options(body: GenerationBody) -> list[str]:
    """Take the options that are ignored out of a body, and return their names."""
    found = take_ignored(body)
    if body.service_tier not in (None, FLEX):
        found.insert(0, "service_tier")
    if body.stream_options is not None:
        found += take_ignored(body.stream_options, "stream_options.")
    return found


def _temperature(asked: float | None) -> float:
    if asked is None:
        return DEFAULT_TEMPERATURE
    if not is_temperature(asked):
        raise InvalidRequest(f"temperature: {asked:g} is not allowed; use {TEMPERATURES}", param="temperature")
    return asked


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop: more than {MAX_STOPS} strings", param="stop")
    if "" in stops:
        raise InvalidRequest("stop: a stop string must not be empty", param="stop")
    return stops


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in bias):
        raise InvalidRequest("logit_bias: its keys must be token ids", param="logit_bias")
    return {int(key): value for key, value in bias.items()}
