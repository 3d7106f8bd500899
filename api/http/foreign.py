"""Bodies in others' protocols, in which clients send new fields every week: those that nobody knows are left out.

They are named to the client and counted, like those that are known to change nothing (`api.requests.ignored`). A field
that is known to change what is generated, and that the service cannot honour, is refused. Names are clients' words:
only so many are spelled out that neither a header nor a metric grows with them."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from api.http.body_shape import Raw
from api.http.decoding import convert_body, decode_body
from core.errors import InvalidRequest

T = TypeVar("T")

_MOST_SPELLED: Final = 200  # names, in the life of a process
MOST_NAMED: Final = 24  # of one part of a request
_LONGEST: Final = 64
_OTHER: Final = "other"
_OURS: Final = "onward"
_ANY: Final = msgspec.json.Decoder()
_spelled: Final[set[str]] = set()

_FORMAT: Final = "use response_format"
_STOP: Final = "use stop"
_SAMPLING: Final = "use temperature, top_p, top_k and min_p"
_PENALTY: Final = "use frequency_penalty or presence_penalty"
_MESSAGES: Final = "put it into the messages"
_NONE: Final = "the service has nothing like it"
CHANGES_ANSWERS: Final = {
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), _FORMAT),
    **dict.fromkeys(("grammar", "json_schema", "regex", "ebnf", "structural_tag", "format"), _FORMAT),
    **dict.fromkeys(("stop_token_ids", "stop_regex", "ignore_eos", "include_stop_str_in_output"), _STOP),
    **dict.fromkeys(("typical_p", "top_a", "epsilon_cutoff", "eta_cutoff", "tfs", "mirostat", "samplers"), _SAMPLING),
    **dict.fromkeys(("dynatemp_range", "xtc_probability", "dry_multiplier", "use_beam_search"), _SAMPLING),
    **dict.fromkeys(("length_penalty", "no_repeat_ngram_size", "repeat_penalty"), _PENALTY),
    **dict.fromkeys(("documents", "context", "system_prompt", "images", "image_data"), _MESSAGES),
    **dict.fromkeys(("bad_words", "logits_processors", "custom_logit_processor"), "use logit_bias"),
    **dict.fromkeys(("audio", "web_search_options", "prompt_embeds", "input_embeds"), _NONE),
    **dict.fromkeys(("chat_template", "continue_final_message", "add_generation_prompt"), _NONE),
    **dict.fromkeys(("lora_path", "lora_request", "adapter_id", "models", "models_fallback"), _NONE),
}
"""Fields at the top of a body that are known to change what is generated, each with what to send instead."""
NOTHING: Final[tuple[Any, ...]] = (None, False, "", [], {})
"""Values with which a client mostly says no more than by leaving a field out; 0 is False."""
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("typical_p", "tfs", "length_penalty", "repeat_penalty"), (1.0,)),
    "add_generation_prompt": (True,),
    "json_schema": (),  # {} wants any JSON
}
"""Fields that change something at one of those values, with the values at which they change nothing; null is one."""


def decode_foreign(decoder: msgspec.json.Decoder[T], raw: Raw) -> tuple[T, list[str]]:
    """Decode a body; return it with the names of unknown fields, which are left out. Raises InvalidRequest."""
    try:
        return decode_body(decoder, raw), []
    except InvalidRequest as error:
        if error.code != "unknown_field":
            raise
    given, left = decode_body(_ANY, raw), _Left()  # the first decoder went no further than to the unknown field
    return convert_body(left.out_of(given, _shape(decoder.type), ""), decoder.type), left.names


def convert_foreign(given: Any, kind: type[T], place: str) -> tuple[T, list[str]]:
    """Return a decoded value as the type, with the names of unknown fields, of which each begins with `place`.

    Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(given, kind), []
    except msgspec.ValidationError:
        left = _Left()
        return msgspec.convert(left.out_of(given, _shape(kind), place), kind), left.names


class _Left:
    """What was left out of one value."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def out_of(self, value: Any, shape: inspect.Type, place: str) -> Any:
        """Return the value without the fields that its type does not know.

        Raises InvalidRequest for one that changes what is generated."""
        for each in _fitting(value, shape):
            if isinstance(each, inspect.StructType):
                return self._struct(value, each, place)
            if isinstance(each, inspect.ListType):
                return [self.out_of(part, each.item_type, f"{place.removesuffix('.')}[].") for part in value]
        return value

    def _struct(self, value: dict[str, Any], shape: inspect.StructType, place: str) -> dict[str, Any]:
        known = {field.encode_name: field.type for field in shape.fields}
        kept = {}
        for name, part in value.items():
            if name in known:  # what is in our own block is ours to know
                kept[name] = part if name == _OURS else self.out_of(part, known[name], f"{place}{name}.")
            elif name == shape.tag_field or not shape.forbid_unknown_fields:
                kept[name] = part
            else:
                self._leave(name, part, place)
        return kept

    def _leave(self, name: str, value: Any, place: str) -> None:
        if not place and name in CHANGES_ANSWERS:
            if value is None or value in NEUTRAL.get(name, NOTHING):
                return
            message = f"{name}: changes what is generated, and cannot be honoured: {CHANGES_ANSWERS[name]}"
            raise InvalidRequest(message, param=name, code="unsupported")
        add_spelled(self.names, name, place)


def _fitting(value: Any, shape: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types, of those that a value may have, that go with its kind and its tag."""
    shapes = shape.types if isinstance(shape, inspect.UnionType) else (shape,)
    for each in shapes:
        if isinstance(each, inspect.StructType) and isinstance(value, dict):
            if each.tag_field is None or value.get(each.tag_field) == each.tag:
                yield each
        elif isinstance(each, inspect.ListType) and isinstance(value, list):
            yield each


def add_spelled(names: list[str], name: str, place: str) -> None:
    """Add a client's name of a field that is left out, unless it is there, or that there are others."""
    spelled = place + _spell(name) if len(names) < MOST_NAMED else _OTHER
    if spelled not in names:
        names.append(spelled)


def _spell(name: str) -> str:
    """Return a client's name of a field, or that it is another one: names are few, and of few characters."""
    if name in _spelled:
        return name
    is_plain = len(name) <= _LONGEST and name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    if not is_plain or len(_spelled) >= _MOST_SPELLED:
        return _OTHER
    _spelled.add(name)
    return name


_shape: Callable[[Any], inspect.Type] = lru_cache(maxsize=128)(inspect.type_info)
