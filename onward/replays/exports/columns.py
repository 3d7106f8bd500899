"""The columns of every form, as Parquet types. A file of lines has the same ones."""

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

_TEXT, _WHOLE, _REAL, _YES = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_CALL: Final = pa.struct(
    [("id", _TEXT), ("type", _TEXT), ("function", pa.struct([("name", _TEXT), ("arguments", _TEXT)]))]
)
_OF_A_MESSAGE: Final = {
    "role": _TEXT,
    "content": _TEXT,
    "name": _TEXT,
    "tool_call_id": _TEXT,
    "tool_calls": pa.list_(_CALL),
    "reasoning_content": _TEXT,
    "suffix": _TEXT,  # of a raw completion
}
MESSAGES: Final = "messages"
"""A conversation. Its messages have only the members that some message of the file has: a chat template may take one
that is null for one that is there."""
ANSWERS: Final = "answers"
"""Several conversations."""
_TIME: Final = pa.timestamp("us", "UTC")
_NAMED: Final = pa.list_(pa.struct([("name", _TEXT), ("value", _TEXT)]))
_OUTCOME: Final = pa.struct(
    [("name", _TEXT), ("value", _TEXT), ("about", _TEXT), ("source", _TEXT), ("learn", _YES), ("received_at", _TIME)]
)
_SPAN: Final = [("start", _WHOLE), ("end", _WHOLE)]
Columns = dict[str, Any]

_OF_A_TURN: Final[Columns] = {
    "inference_id": _TEXT,
    "workload": _TEXT,
    "version": _WHOLE,
    "finish_reason": _TEXT,
}
TURNS: Final[Columns] = {
    "inference_id": _TEXT,
    "session_id": _TEXT,
    "turn_index": _WHOLE,
    "parent_id": _TEXT,
    "group_id": _TEXT,
    "namespace": _TEXT,
    "workload": _TEXT,
    "purpose": _TEXT,
    "environment": _TEXT,
    "user": _TEXT,
    "arm": _TEXT,
    "version": _WHOLE,
    "versions": pa.list_(pa.struct([*_SPAN, ("version", _TEXT)])),
    "received_at": _TIME,
    "messages": MESSAGES,
    "tools": _TEXT,
    "prompt_token_ids": pa.list_(_WHOLE),
    "token_ids": pa.list_(_WHOLE),
    "logprobs": pa.list_(_REAL),
    "temperature": _REAL,
    "segments": pa.list_(pa.struct([*_SPAN, ("kind", _TEXT)])),
    "text": _TEXT,
    "tool_calls": pa.list_(_CALL),
    "finish_reason": _TEXT,
    "trainable": _YES,
    "untrainable_reasons": pa.list_(_TEXT),
    "reward": _REAL,
    "reward_parts": pa.list_(pa.struct([("name", _TEXT), ("value", _REAL)])),
    "reward_revision": _WHOLE,
    "reward_final": _YES,
    "reward_spec": _TEXT,
    "credits": pa.list_(pa.struct([*_SPAN, ("value", _REAL)])),
    "outcomes": pa.list_(_OUTCOME),
    "tags": _NAMED,
    "tokenizer": _TEXT,
    "left_out": _TEXT,
}
KTO: Final[Columns] = {
    "prompt": MESSAGES,
    "completion": MESSAGES,
    "label": _YES,
    "tools": _TEXT,
    "reward": _REAL,
    **_OF_A_TURN,
}
SFT: Final[Columns] = {"messages": MESSAGES, "tools": _TEXT, "source": _TEXT, "reward": _REAL, **_OF_A_TURN}
DPO: Final[Columns] = {
    "prompt": MESSAGES,
    "chosen": MESSAGES,
    "rejected": MESSAGES,
    "tools": _TEXT,
    "source": _TEXT,
    "reward_chosen": _REAL,
    "reward_rejected": _REAL,
    "inference_id_chosen": _TEXT,
    "inference_id_rejected": _TEXT,
    "workload": _TEXT,
}
GRPO: Final[Columns] = {
    "prompt": MESSAGES,
    "logged_completions": ANSWERS,
    "rewards": pa.list_(_REAL),
    "inference_ids": pa.list_(_TEXT),
    "tools": _TEXT,
    "data_source": _TEXT,
    "ability": _TEXT,
    "reward_model": pa.struct([("style", _TEXT), ("ground_truth", _TEXT)]),
    "extra_info": pa.struct([("index", _WHOLE), ("answers", pa.list_(_TEXT)), ("rewards", pa.list_(_REAL))]),
}


def schema_of(columns: Columns, members: Collection[str]) -> Any:
    """Return the schema of a file whose messages have these members."""
    message = pa.struct([(name, kind) for name, kind in _OF_A_MESSAGE.items() if name in members])
    conversation = pa.list_(message)
    special = {MESSAGES: conversation, ANSWERS: pa.list_(conversation)}
    return pa.schema([(name, special[kind] if isinstance(kind, str) else kind) for name, kind in columns.items()])


def members_in(row: dict[str, Any], columns: Columns) -> set[str]:
    """Return which members the messages of a row have."""
    found: set[str] = set()
    for name, kind in columns.items():
        if kind is MESSAGES or kind is ANSWERS:
            talks = [row[name] or []] if kind is MESSAGES else row[name]
            found |= {member for talk in talks for message in talk for member in message}
    return found


def times_in(columns: Columns) -> list[str]:
    """Return the columns that hold a moment, which a line has as text."""
    return [name for name, kind in columns.items() if kind is _TIME]
