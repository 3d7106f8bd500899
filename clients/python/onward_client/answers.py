"""The inference that an answer of the service is."""

from typing import Any

_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")


def inference_id_of(answer: Any) -> str:
    """Return the inference id of an answer, a choice of several, a streamed chunk, or an id as the service gives it.

    `answer` is an object of the `openai` or `anthropic` package, the same as a dictionary, or a string. Of the events
    of the Messages API and the Responses API, those have an id that are about the whole answer, such as the first.

    Raises ValueError for what has no id, and for an answer of several choices: name one of its `choices`, since each is
    an inference of its own. A chunk of their stream is of one of them, but for the last, with the usage of all."""
    if isinstance(answer, str):
        return _without_prefix(answer)
    own = _field(_field(answer, "onward"), "inference_id")
    if isinstance(own, str):
        return own
    choices = _field(answer, "choices")
    if isinstance(choices, list):
        if len(choices) != 1:  # all of several, or the usage of all at the end of their stream
            raise ValueError("an answer of several choices is no one inference: name one of its choices")
        own = _field(_field(choices[0], "onward"), "inference_id")
        if isinstance(own, str):  # a chunk of one of several
            return own
    named = _field(_held(answer), "id")
    if not isinstance(named, str) or not named:
        raise ValueError(f"a {type(answer).__name__} without an inference id is no answer of the service")
    return _without_prefix(named)


def _held(answer: Any) -> Any:
    """Return the answer that an event of a stream holds, or what was given."""
    held = (_field(answer, name) for name in ("message", "response"))
    return next((each for each in held if _field(each, "id")), answer)


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


def _without_prefix(named: str) -> str:
    return next((named.removeprefix(prefix) for prefix in _PREFIXES if named.startswith(prefix)), named)
