"""SGLang's words for what it cannot do, as errors that name the field."""

import re

from core.errors import EngineUnavailable, InvalidRequest, OnwardError
from core.grammars.library import TOO_COMPLEX

_GRAMMAR = {"Grammar accept_token failed": TOO_COMPLEX, "Failed to compile": "invalid_grammar"}
_NO_ADAPTER = re.compile(r"\bLoRA\b")  # the named adapter is gone: another replica has it, or the host loads it again
_TOO_LONG = re.compile(r"context length|maximum allowed length|memory budget")
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "sampling_seed": "seed",
    "max_new_tokens": "max_tokens",
    "input_ids": "prompt_token_ids",
}
_CLIENTS_FAULT = (400, 413, 422)
_KEY_IS_WRONG = (401, 403)


def refusal(where: str, status: int, message: str) -> OnwardError:
    """Return the error for an HTTP status, or for the status of an abort within an answer.

    A grammar that is none, or became too complex, is the client's fault, whatever the status: any engine ends there."""
    for beginning, code in _GRAMMAR.items():
        if message.startswith(beginning):
            return InvalidRequest(message[:500], code=code)
    if status in _CLIENTS_FAULT and _NO_ADAPTER.search(message):
        return EngineUnavailable(f"{where}: {message[:500]}")
    if status in _CLIENTS_FAULT:
        if _TOO_LONG.search(message):
            return InvalidRequest(message, param="prompt_token_ids", code="context_length_exceeded")
        first_word = message.partition(" ")[0]
        return InvalidRequest(message, param=_FIELDS.get(first_word))
    if status in _KEY_IS_WRONG:
        return EngineUnavailable(f"{where} refuses the key: is serving.sglang.admin_key the server's --api-key?")
    return EngineUnavailable(f"{where}: {status} {message[:500]}")
