"""What the service is told of an attempt: the reward of its session, or that it has none."""

import uuid
from dataclasses import dataclass, field
from typing import Final

from environments.rollouts.episode import Episode, EpisodeResult

_REPORTS: Final = uuid.UUID("0f4b6b1c-0a57-5d0c-8d8c-6f8b0e6f3a27")  # names reports (RFC 9562, v5)
REWARD: Final = "task_reward"
FAILED: Final = "infrastructure_failure"
OUT_OF_TIME: Final = "out_of_time"


@dataclass(frozen=True)
class Report:
    """Feedback on one session.

    Its id is a function of the episode for a reward, so that an episode can have no second one whatever happens, and of
    the attempt for the other two, which void all that the session might else be worth. `has_turns`: an answer of the
    session was received, so that the service will know it once its log is read."""

    feedback_id: str
    session_id: str
    metric_name: str
    value: bool | float
    tags: dict[str, str] = field(default_factory=dict)
    has_turns: bool = False


def report_of(result: EpisodeResult) -> Report:
    """Return what is to be told of an attempt that ended."""
    episode = result.episode
    tags = {"episode": episode.episode_id, "task": _text(episode.task), "task_set": _text(episode.environment)}
    tags["attempt"] = str(episode.attempt)
    has_turns = result.work is not None and bool(result.work.inference_ids)
    if result.reward is not None:
        return Report(_id(episode.episode_id, REWARD), episode.session_id, REWARD, result.reward, tags, has_turns)
    name = OUT_OF_TIME if result.verdict == "out_of_time" else FAILED
    if result.part is not None:
        tags["part"] = result.part
    tags["why"] = _text(result.why)
    return Report(_id(episode.session_id, name), episode.session_id, name, True, tags, has_turns)


def interruption_of(episode: Episode, started_at: float, ended_at: float) -> EpisodeResult:
    """Return the end of an attempt that ended with the program that ran it."""
    why = "the program that ran the episode was ended"
    return EpisodeResult(episode, "infrastructure", None, None, started_at, ended_at, "machine", why)


def _id(subject: str, name: str) -> str:
    return str(uuid.uuid5(_REPORTS, f"{subject}\0{name}"))


def _text(text: str) -> str:
    """Return a text as a tag of feedback takes it, which has at most 512 characters."""
    return text if len(text) <= 512 else text[:509] + "..."
