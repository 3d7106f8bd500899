"""From the body's fields to `core.events.Sampling`, and how many tokens there is room for."""

from api.bodies import MAX_STOPS, GenerationBody
from core.errors import InvalidRequest
from core.events import Sampling

DEFAULT_TEMPERATURE = 1.0  # OpenAI's, and the only one at which logprobs need no rescaling


def sampling_of(body: GenerationBody, max_tokens: int) -> Sampling:
    """Raises InvalidRequest naming the field."""
    return Sampling(
        temperature=DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=max_tokens,
        stop=_stop(body.stop),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias),
    )


def room_for_answer(
    prompt_tokens: int, context_length: int, asked: int | None, asked_by: str, default: int, prompt_field: str
) -> int:
    """Tokens that the answer may have. Raises InvalidRequest when the prompt, or what was asked for, does not fit."""
    room = context_length - prompt_tokens
    if room < 1:
        raise InvalidRequest(
            f"{prompt_field}: {prompt_tokens} tokens, but the context holds {context_length} with the answer",
            param=prompt_field,
            code="context_length_exceeded",
        )
    if asked is None:
        return min(default, room)
    if asked > room:
        raise InvalidRequest(
            f"{asked_by}: {asked} tokens, but after {prompt_tokens} of prompt the context has room for {room}",
            param=asked_by,
            code="context_length_exceeded",
        )
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
        raise InvalidRequest("logit_bias: its keys are token ids", param="logit_bias")
    return {int(key): value for key, value in bias.items()}
