"""Votes, and the judgement that they make."""

import hashlib
import json
import statistics
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec

from core.events import Completion, Outcome
from core.ids import JUDGED, OutcomeId
from core.settings import JudgeSettings

_JUDGEMENTS: Final = uuid.UUID("2b7f6a52-8f0b-5d0f-a5c4-6f5d5a0f7e31")
_RULES: Final = "1"
"""Version of how votes are asked for and counted, beyond what settings and prompt say; it changes when that changes."""
_DIGEST_BYTES: Final = 6


class Vote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of a vote, as the judge must write it."""

    reason: Annotated[str, msgspec.Meta(max_length=2000)]
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]


_decode = msgspec.json.Decoder(Vote).decode


def read_vote(said: str) -> Vote:
    """Read a vote. Raises ValueError for anything else."""
    try:
        return _decode(said)
    except msgspec.DecodeError as error:
        raise ValueError(f"no vote: {error}") from error


def median(votes: Sequence[Vote]) -> float:
    """Return the median score.

    Unlike the mean, one stray vote of three, or one that the judged text talked into a 1, does not move it; and of an
    odd number it is one of them."""
    return statistics.median(vote.score for vote in votes)


def is_enough(votes: int, asked: int) -> bool:
    """Return whether more than half of the votes came."""
    return 2 * votes > asked


def version_of(settings: JudgeSettings, instructions: str) -> str:
    """Return the model's name and a digest of everything else that a judgement follows from."""
    asked = settings.requests
    basis = [_RULES, settings.model, instructions, asked.votes, asked.temperature, asked.max_tokens]
    digest = hashlib.blake2b(json.dumps(basis).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{settings.model}/{digest}"


def judgement(turn: Completion, votes: Sequence[Vote], name: str, version: str, now: datetime) -> Outcome:
    """Return the outcome. Its id follows from the turn and the version: judged again, after a crash, it is the same."""
    value = median(votes)
    nearest = min(votes, key=lambda vote: abs(vote.score - value))
    return Outcome(
        outcome_id=OutcomeId(JUDGED + str(uuid.uuid5(_JUDGEMENTS, "\0".join((turn.inference_id, name, version))))),
        inference_id=turn.inference_id,
        session_id=None,
        namespace=turn.namespace,
        name=name,
        value=value,
        source="judge",
        source_version=version,
        observed_at=now,
        received_at=now,
        tags={"why": nearest.reason, "votes": " ".join(f"{vote.score:g}" for vote in votes)},
    )
