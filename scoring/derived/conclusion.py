"""What a rule concludes, as an outcome."""

import uuid
from typing import Final

import msgspec

from core.events import Completion, Outcome
from core.ids import InferenceId, OutcomeId

_CONCLUSIONS: Final = uuid.UUID("6c2f8d0e-53a1-5c7e-9a44-0d2be81f7a10")


class Conclusion(msgspec.Struct, frozen=True):
    """`about`: the earlier turn; `place` tells apart what one later turn says of it more than once."""

    name: str
    about: InferenceId
    value: bool | float
    why: str
    place: int = 0


def outcome_of(conclusion: Conclusion, turn: Completion, version: str) -> Outcome:
    """Arrives with the turn that it follows from. Its id follows from what it says of whom, so that it is one outcome
    however often it is concluded."""
    identity = (conclusion.name, conclusion.about, turn.inference_id, str(conclusion.place), version)
    return Outcome(
        outcome_id=OutcomeId(str(uuid.uuid5(_CONCLUSIONS, "\0".join(identity)))),
        inference_id=conclusion.about,
        session_id=None,
        namespace=turn.namespace,
        user_id=turn.user_id,
        name=conclusion.name,
        value=conclusion.value,
        source="derived",
        source_version=version,
        observed_at=turn.received_at,
        received_at=turn.received_at,
        tags={"why": conclusion.why, "seen_in": turn.inference_id},
    )
