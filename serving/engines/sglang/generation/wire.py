"""The messages of SGLang's `POST /generate`: the fields that Onward uses.

See sglang 0.5.23, python/sglang/srt/managers/io_struct.py: GenerateReqInput; tokenizer_manager.py for `meta_info`."""

from typing import Any

import msgspec

from core.events import Priority
from core.ports import GenerateRequest

TopEntry = tuple[float | None, int, str | None]  # log-probability, token id, its text if asked for


class WireFinish(msgspec.Struct, frozen=True, gc=False):
    type: str  # stop, length, abort
    message: str = ""
    status_code: int | None = None  # of an abort that is an error


class Span(msgspec.Struct, frozen=True, gc=False):
    """Output tokens [start, end) were sampled while the engine bore this label."""

    version: str
    start: int
    end: int


class MetaInfo(msgspec.Struct, frozen=True, gc=False):
    """The metadata of an event.

    `completion_tokens` counts from the beginning. `weight_version` is the server's when it writes the event;
    `weight_versions` comes with the last event alone, and is the sampler's. `queue_time` counts the
    seconds of all waits so far, and comes under --enable-metrics alone."""

    finish_reason: WireFinish | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    queue_time: float | None = None
    weight_version: str | None = None
    weight_versions: list[Span] | None = None
    output_token_logprobs: list[TopEntry] = []
    output_top_logprobs: list[list[TopEntry] | None] = []


class WireRefusal(msgspec.Struct, frozen=True, gc=False):
    message: str
    code: int = 400


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of the stream: newly sampled tokens, or why there are none."""

    output_ids: list[int] = []
    meta_info: MetaInfo = MetaInfo()
    error: WireRefusal | None = None


# Beyond these the server's tensors (float32, int32) hold another number, or its scheduler ends for want of one.
# What is sampled is the same: of the likeliest alone, and of all there are.
_LEAST_TOP_P = 1e-6
_MOST_TOP_K = 1 << 30

# Further apart than the server's threshold for preemption (--priority-scheduling-preemption-threshold, 10). A server
# without --enable-priority-scheduling passes over them.
_PRIORITIES: dict[Priority, int] = {"normal": 100, "low": 0}

decode_event = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


def encode_request(request: GenerateRequest, rid: str, adapter: str | None = None) -> bytes:
    """Encode a request, which is answered by the adapter of that name, if any.

    Without stop tokens the answer goes on to `max_tokens`; with them it also ends at the model's own end of text."""
    sampling = request.sampling
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": max(sampling.top_p, _LEAST_TOP_P),
        "top_k": -1 if sampling.top_k is None else min(sampling.top_k, _MOST_TOP_K),
        "min_p": sampling.min_p or 0.0,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "sampling_seed": sampling.seed,  # obeyed under --enable-deterministic-inference, else ignored
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": not request.stop_token_ids,
    }
    if sampling.logit_bias:
        parameters["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.grammar is not None:
        parameters["ebnf"] = _of_scope(sampling.grammar.text, request.cache_scope)
    named = {} if adapter is None else {"lora_path": adapter}
    return _encode(
        {
            **named,
            "rid": rid,
            "input_ids": request.prompt_token_ids,
            "sampling_params": parameters,
            "priority": _PRIORITIES[request.priority],
            "stream": True,
            "return_logprob": True,
            "top_logprobs_num": request.top_logprobs,
            "extra_key": request.cache_scope,  # of its radix cache, whose entries are matched under one such key
        }
    )


def _of_scope(grammar: str, scope: str | None) -> str:
    """Return the grammar as one that the server keeps for the scope alone: it keeps what it compiled by the text.

    The text is handed to llguidance as it is, where it begins as its Lark does; so a comment ends it."""
    return grammar if scope is None else f"{grammar}\n// {scope}\n"
