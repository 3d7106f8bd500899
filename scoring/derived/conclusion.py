"""The conclusion of a rule, as an outcome."""

import uuid
from typing import Final

import msgspec

from core.events import Completion, Outcome, ToolCallTarget
from core.ids import DERIVED, InferenceId, OutcomeId

_CONCLUSIONS: Final = uuid.UUID("6c2f8d0e-53a1-5c7e-9a44-0d2be81f7a10")


class Conclusion(msgspec.Struct, frozen=True):
    """A conclusion about an earlier turn (`about`); `place` tells apart several that one later turn makes about it.

    `call`: the id of the turn's call that it is about, where it is about one; `words`: what was said of it."""

    name: str
    about: InferenceId
    value: bool | float
    why: str
    place: int = 0
    call: str | None = None
    words: str | None = None


def outcome_of(conclusion: Conclusion, turn: Completion, version: str) -> Outcome:
    """Make an outcome that arrives with the turn that it follows from.

    Its id follows from its content, so that it is one outcome however often it is concluded; no client may give such an
    id to what it reports. Words are kept only of a turn that may be learned from: they would be learned from."""
    identity = (conclusion.name, conclusion.about, turn.inference_id, str(conclusion.place), version)
    return Outcome(
        outcome_id=OutcomeId(DERIVED + str(uuid.uuid5(_CONCLUSIONS, "\0".join(identity)))),
        inference_id=conclusion.about,
        session_id=None,
        namespace=turn.namespace,
        user_id=turn.user_id,
        name=conclusion.name,
        value=conclusion.value,
        target_call=None if conclusion.call is None else ToolCallTarget(tool_call_id=conclusion.call),
        evidence=conclusion.words if turn.learn else None,
        source="derived",
        source_version=version,
        observed_at=turn.received_at,
        received_at=turn.received_at,
        tags={"why": conclusion.why, "seen_in": turn.inference_id},
        learn=turn.learn,
    )
