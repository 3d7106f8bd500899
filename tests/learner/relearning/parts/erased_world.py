"""A world whose words are known, and the eraser that works in it."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import zstandard
from excluded_users import MALLORY, Pair
from logged_world import World, settle
from stepping import step

from core.events import Completion, Hint, Outcome, Topic
from core.ids import Namespace, OutcomeId, SessionId
from core.operations.erasures import Erasure
from core.settings import IngestSettings
from ingest.erasure.eraser import Eraser, Widening
from ingest.erasure.in_log import InLog, Readers
from ingest.erasure.in_store import InExports, InStore
from ingest.erasure.statement import Signer
from ingest.writer import Writer
from learner.stage import Learner
from onward.wiring.privacy.erasing import AwaitLearner
from serving.weights.erasing import InWeights

CANARY = "Zugspitzfeuersalamander"
"""A word that stands in everything that the erased user says, and nowhere else."""
NAMESPACE = Namespace("default")


def in_own_words(past: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Give each user sessions of its own; Mallory's turns and hints say the word, spread over all that has text."""
    return [[_said(turn, reward) for turn, reward in pairs] for pairs in past]


def _said(turn: Completion, reward: object) -> Pair:
    session = SessionId(f"s-{turn.inference_id[-12:]}")
    word = CANARY if turn.user_id == MALLORY else "an ordinary word"
    said = msgspec.structs.replace(
        turn, session_id=session, messages=({"role": "user", "content": f"please {word}"},), text=f"{word} it is"
    )
    hint = Hint(start=0, end=1, text=f"I said {word}", outcome_id=OutcomeId(f"o-{turn.inference_id}"))
    return said, msgspec.structs.replace(reward, session_id=session, hints=(hint,))  # type: ignore[type-var,return-value]


def teach(world: World, learner: Learner, past: Sequence[Sequence[Pair]]) -> None:
    """Let the writer store turns and comments out of the log, and the learner learn from their rewards."""
    writer = writer_of(world)
    for pairs in past:
        world.log.append_blocking(Topic.TURNS, [turn for turn, _ in pairs])
        world.log.append_blocking(Topic.TURNS, [comment_on(turn) for turn, _ in pairs])
        while step(writer):
            pass
        with world.store.work() as work:
            work.rewards.put([(0, reward) for _, reward in pairs])
        world.log.append_blocking(Topic.REWARDS, [reward for _, reward in pairs])
        world.clock.advance_to(max(reward.decided_at for _, reward in pairs))
        settle(learner)
    writer.close()


def comment_on(turn: Completion) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(f"o-{turn.inference_id}"),
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        user_id=turn.user_id,
        name="comment",
        value=f"about {turn.text}",
        observed_at=turn.received_at,
        received_at=turn.received_at,
    )


def writer_of(world: World) -> Writer:
    return Writer(world.log, world.store, IngestSettings(), world.clock)


def eraser_of(world: World) -> Eraser:
    log, store, widen = world.log, world.store, Widening(world.store, world.clock)
    places = [
        InLog(log, store, log, widen),
        Readers(store, ["writer"], [world.directory / "spool"], archives=False),
        InLog(log, store, log, widen, "log_after"),
        InStore(store, store.scrub),
        InExports(store),
        AwaitLearner(),
        InWeights(store, world.blobs, world.weights, world.weights.forget),
    ]
    return Eraser(store, world.clock, places, Signer(world.directory / "erasure-key.pem"))


def order(world: World, *, redact: bool = True) -> int:
    """Order that Mallory be erased, as the API does."""
    now = world.clock.now()
    with world.store.work() as work:
        sessions = work.sweeps.sessions_of(NAMESPACE, MALLORY, now)
        asked = Erasure(
            erasure_id=0,
            namespace=NAMESPACE,
            kind="user",
            subject=MALLORY,
            why="it was asked for",
            by="ops",
            ordered_at=now,
            deadline_at=now,
        )
        number = work.erasures.give(asked)
        known = work.erasures.get(number)
        assert known is not None
        if redact:
            work.sweeps.redact(NAMESPACE, sessions, now)
        work.erasures.widen(known, sessions, now)
    return number


def obeyed(world: World, learner: Learner, eraser: Eraser, number: int) -> Erasure:
    """Let eraser and learner work until the order is done or waits for a release."""
    for _ in range(200):
        moved = eraser.go_on()
        settle(learner)
        with world.store.look() as view:
            found = view.erasures.get(number)
        assert found is not None
        if found.state == "done" or (not moved and "serves" in found.waits_for):
            return found
    raise AssertionError(f"it waits: {found.waits_for}")


def files_with(directory: Path, words: Sequence[str]) -> list[str]:
    """Return the kinds of files below a directory that have one of the words, as they lie there or unpacked."""
    wanted = [word.encode() for word in words]
    files = (path for path in directory.rglob("*") if path.is_file())
    found = {str(path.relative_to(directory)) for path in files if any(each in _bytes_of(path) for each in wanted)}
    return sorted({re.sub(r"\d{8}|-wal$", "", name) for name in found})


def _bytes_of(path: Path) -> bytes:
    raw = path.read_bytes()
    for found in re.finditer(re.escape(zstandard.FRAME_HEADER), raw):
        with suppress(zstandard.ZstdError):  # four such bytes begin no frame
            raw += zstandard.ZstdDecompressor().decompressobj().decompress(raw[found.start() :])
    return raw
