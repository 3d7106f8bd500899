"""The columns of an export and their types in Parquet; what each holds is in docs/research.md.

The first ones have the names under which TRL and verl look for them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

Row = dict[str, Any]
MESSAGES: Final = "messages"
"""In place of the type of a list of messages, which has the fields that some message of the export has."""

_CALL: Final = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGE: Final = {
    "role": pa.string(),
    "content": pa.string(),
    "reasoning_content": pa.string(),
    "tool_calls": pa.list_(_CALL),
    "tool_call_id": pa.string(),
    "name": pa.string(),
}
_IDS: Final = pa.list_(pa.int32())
_LOGPROBS: Final = pa.list_(pa.float32())
_SPAN: Final = [("start", pa.int32()), ("end", pa.int32())]
_NAMED: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))

ABOUT: Final = {
    "inference_id": pa.string(),
    "session_id": pa.string(),
    "namespace": pa.string(),
    "workload": pa.string(),
    "purpose": pa.string(),
    "user": pa.string(),
    "time": pa.string(),
    "version": pa.string(),
    "trainable": pa.bool_(),
    "temperature": pa.float64(),
    "reward": pa.float64(),
    "revision": pa.int32(),
    "components": pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())])),
    "outcomes": _NAMED,
    "tags": _NAMED,
}
_TOKENS: Final = {"prompt_token_ids": _IDS, "token_ids": _IDS, "logprobs": _LOGPROBS}
COLUMNS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sft": {
        "prompt": MESSAGES,
        "completion": MESSAGES,
        "messages": MESSAGES,
        "tools": pa.string(),
        "origin": pa.string(),
        **_TOKENS,
        **ABOUT,
    },
    "tokens": {"input_ids": _IDS, "labels": _IDS, "logprobs": _LOGPROBS, "origin": pa.string(), **ABOUT},
    "kto": {
        "prompt": MESSAGES,
        "completion": MESSAGES,
        "label": pa.bool_(),
        "tools": pa.string(),
        **_TOKENS,
        **ABOUT,
    },
    "pairs": {
        "prompt": MESSAGES,
        "chosen": MESSAGES,
        "rejected": MESSAGES,
        "tools": pa.string(),
        "source": pa.string(),
        "margin": pa.float64(),
        "chosen_reward": pa.float64(),
        "rejected_reward": pa.float64(),
        "chosen_inference_id": pa.string(),
        "rejected_inference_id": pa.string(),
        "prompt_token_ids": _IDS,
        "chosen_token_ids": _IDS,
        "rejected_token_ids": _IDS,
        "chosen_logprobs": _LOGPROBS,
        "rejected_logprobs": _LOGPROBS,
        "namespace": pa.string(),
        "workload": pa.string(),
    },
    "rewards": {
        "data_source": pa.string(),
        "prompt": MESSAGES,
        "ability": pa.string(),
        "reward_model": pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
        "extra_info": pa.struct([("index", pa.int64()), ("inference_id", pa.string())]),
        "completion": MESSAGES,
        "tools": pa.string(),
        **_TOKENS,
        "token_rewards": pa.list_(pa.float64()),
        "credits": pa.list_(pa.struct([*_SPAN, ("value", pa.float64())])),
        "hints": pa.list_(pa.struct([*_SPAN, ("text", pa.string())])),
        "edits": pa.list_(pa.struct([*_SPAN, ("token_ids", _IDS)])),
        **ABOUT,
    },
}


def fields_in(row: Row, form: str) -> set[str]:
    """Return the fields that the row's messages have."""
    lists = (row[name] for name, kind in COLUMNS[form].items() if kind is MESSAGES)
    return {field for messages in lists for message in messages for field in message}


def schema_of(form: str, message_fields: Collection[str], *, has_tools: bool) -> pa.Schema:
    """Return the schema of a file whose messages have these fields.

    A field or a column of tools that no row has is left away: templates take what is null for what is there."""
    known = {name: kind for name, kind in _MESSAGE.items() if name in message_fields}
    messages = pa.list_(pa.struct(list(known.items())))
    columns: Iterable[tuple[str, Any]] = COLUMNS[form].items()
    return pa.schema(
        [(name, messages if kind is MESSAGES else kind) for name, kind in columns if has_tools or name != "tools"]
    )
