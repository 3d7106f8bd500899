"""The ids of answers, as protocols write them: a prefix, then the inference's own id.

An answer of several choices is no one inference: it has the id of their group."""

from typing import Final

from core.ids import InferenceId

CHAT: Final = "chatcmpl-"
TEXT: Final = "cmpl-"
MESSAGE: Final = "msg_"
RESPONSE: Final = "resp_"
_PREFIXES = (CHAT, TEXT, MESSAGE, RESPONSE)


def inference_of(named: str) -> InferenceId:
    """Return the inference that an id names, however it is spelled."""
    return InferenceId(inference_in(named).lower())


def inference_in(named: str) -> str:
    """Return the inference that a client names by its id, or by that of the answer."""
    return next((named.removeprefix(prefix) for prefix in _PREFIXES if named.startswith(prefix)), named)
