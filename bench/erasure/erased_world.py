"""A small service without its processes: log, store, blobs and a learner of the shipped model, and who is erased there.

Turns are the model's own answers, with their log-probabilities, sampled once; each user says a word that stands nowhere
else in the log, in the store, or in the learner's files."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import (
    Completion,
    Hint,
    LogprobSpace,
    Outcome,
    PolicyVersion,
    Reward,
    Sampling,
    Topic,
    VersionSpan,
)
from core.ids import (
    GroupId,
    InferenceId,
    Namespace,
    OutcomeId,
    SessionId,
    UserHash,
    base_ref,
    session_routing,
)
from core.model.probes import ProbeRecord
from core.operations.erasures import Erasure
from core.settings import IngestSettings, LearnerSettings
from core.stages.rounds import Rounds
from core.stages.stage import Stage
from core.store import SqlStore, open_sqlite
from ingest.erasure.eraser import Eraser, Widening
from ingest.erasure.in_log import InLog, Readers
from ingest.erasure.in_store import InStore
from ingest.erasure.statement import Signer
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer
from learner.stage import Learner
from learner.versions.probe import probe_of_model
from onward.wiring.privacy.erasing import AwaitLearner
from serving.releases import ensure_anchor
from serving.rendering import load_renderer
from serving.weights.erasing import InWeights
from serving.weights.published import BlobWeights

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = Namespace("default")
MALLORY, ALICE = UserHash("mallory"), UserHash("alice")
_PROMPTS, _TOKENS = 24, 12
_SETTINGS = {
    "checkpoints": {"max_lead": 1000, "every_s": 1.0, "keep": 100},
    "admission": {"max_divergence": 1000.0, "min_ess": 0.0},
}
Said = tuple[Completion, Reward]


@lru_cache
def probe_of(model: Path) -> ProbeRecord:
    """Return a probe of two texts: it is asked of every version, and nothing here depends on it."""
    whole = probe_of_model(model, "cpu")
    rows = ("token_ids", "choices", "logprobs", "choice_logprobs")
    return msgspec.structs.replace(whole, **{name: getattr(whole, name)[:2] for name in rows})


@lru_cache
def sampled() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Return prompts, answers and their log-probabilities, sampled at temperature 1 by transformers."""
    torch.manual_seed(3)
    renderer = load_renderer(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    found = []
    for number in range(_PROMPTS):
        prompt = renderer.render([{"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"}], [])
        ids, logprobs = list(prompt), list[float]()
        with torch.inference_mode():
            for _ in range(_TOKENS):
                logits = model(torch.tensor([ids])).logits[0, -1]
                token = int(torch.multinomial(logits.softmax(-1), 1))
                logprobs.append(float(logits.log_softmax(-1)[token]))
                ids.append(token)
        found.append((prompt, tuple(ids[len(prompt) :]), tuple(logprobs)))
    return found


@lru_cache
def digest_of_tokenizer() -> str:
    return load_renderer(MODEL).tokenizer_digest


def said(number: int, user: UserHash, word: str, rng: random.Random) -> Said:
    """Return the turn of that number, and its reward with a hint; both have the user's word."""
    prompt, answer, logprobs = sampled()[number % _PROMPTS]
    session = SessionId(f"session-{number}")
    inference = InferenceId(f"{number:08x}-0000-7000-8000-00000000{session_routing(session):04x}")
    at = START + timedelta(seconds=number)
    turn = Completion(
        inference_id=inference,
        session_id=session,
        turn_index=0,
        parent_id=None,
        group_id=GroupId("group"),
        namespace=NAMESPACE,
        user_id=user,
        workload="write",
        purpose="turn",
        received_at=at,
        messages=({"role": "user", "content": f"please {word}"},),
        sampling=Sampling(max_tokens=_TOKENS),
        prompt_token_ids=prompt,
        token_ids=answer,
        logprobs=logprobs,
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="onward-tiny",
        policy_versions=(VersionSpan(start=0, end=len(answer), version=base_ref(1)),),
        tokenizer_digest=digest_of_tokenizer(),
        renderer="r",
        finish_reason="length",
        text=f"{word} it is",
        delivered_tokens=len(answer),
        latency_ms=1.0,
    )
    outcome = OutcomeId(f"o-{inference}")
    reward = Reward(
        inference_id=inference,
        session_id=session,
        namespace=NAMESPACE,
        workload="write",
        revision=0,
        value=rng.choice([1.0, -0.5, 0.25]),
        components={},
        hints=(Hint(start=0, end=1, text=f"I said {word}", outcome_id=outcome),),
        outcome_ids=(outcome,),
        first_outcome_at=at,
        last_outcome_at=at,
        why="accepted",
        spec="bench",
        final=True,
        decided_at=at + timedelta(seconds=2),
    )
    return turn, reward


def comment_on(turn: Completion, word: str) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(f"o-{turn.inference_id}"),
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        user_id=turn.user_id,
        name="comment",
        value=f"so much for {word}",
        observed_at=turn.received_at,
        received_at=turn.received_at,
    )


@dataclass
class World:
    """The service of one trial, in a directory of its own."""

    directory: Path
    log: SqliteEventLog
    store: SqlStore
    blobs: FsspecBlobs
    weights: BlobWeights
    clock: ManualClock
    learner: Learner

    @property
    def newest(self) -> PolicyVersion:
        assert self.learner.newest is not None
        with self.store.look() as view:
            found = view.policies.get(self.learner.newest)
        assert found is not None
        return found

    def log_turns(self, pairs: Sequence[Said], word_of: dict[UserHash, str]) -> None:
        """Log turns with comments, and let the writer store them."""
        for start in range(0, len(pairs), 2000):
            turns = [turn for turn, _ in pairs[start : start + 2000]]
            comments = [comment_on(turn, word_of[turn.user_id or ALICE]) for turn in turns]
            self.log.append_blocking(Topic.TURNS, [*turns, *comments])
        writer = Writer(self.log, self.store, IngestSettings(), self.clock)
        run(writer)
        writer.close()

    def learn(self, pairs: Sequence[Said]) -> None:
        """Let the learner make an update of these turns."""
        self.log.append_blocking(Topic.REWARDS, [reward for _, reward in pairs])
        self.clock.advance_to(max(reward.decided_at for _, reward in pairs))
        run(self.learner)

    def order(self, user: UserHash) -> int:
        """Order that a user be erased, as the API does."""
        now = self.clock.now()
        with self.store.work() as work:
            sessions = work.sweeps.sessions_of(NAMESPACE, user, now)
            number = work.erasures.give(
                Erasure(
                    erasure_id=0,
                    namespace=NAMESPACE,
                    kind="user",
                    subject=user,
                    why="bench",
                    by="bench",
                    ordered_at=now,
                    deadline_at=now,
                )
            )
            given = work.erasures.get(number)
            assert given is not None
            work.sweeps.redact(NAMESPACE, sessions, now)
            work.erasures.widen(given, sessions, now)
        return number

    def obey(self, number: int) -> Erasure:
        """Let eraser and learner work until the order is done."""
        log, store = self.log, self.store
        widen = Widening(store, self.clock)
        places = [
            InLog(log, store, log, widen),
            Readers(store, ["writer"], [], archives=False),
            InLog(log, store, log, widen, "log_after"),
            InStore(store, store.scrub),
            AwaitLearner(),
            InWeights(store, self.blobs, self.weights, self.weights.forget),
        ]
        eraser = Eraser(store, self.clock, places, Signer(self.directory / "erasure-key.pem"))
        while True:
            eraser.go_on()
            run(self.learner)
            with store.look() as view:
                found = view.erasures.get(number)
            assert found is not None
            if found.state == "done":
                return found

    def close(self) -> None:
        self.learner.close()
        self.log.close()
        self.store.close()


def open_world(directory: Path, turns: int) -> World:
    """Make a service whose updates are of so many turns."""
    directory.mkdir(parents=True)
    log, store = SqliteEventLog(directory / "log.db", 2, 0.01), open_sqlite(directory / "store.db")
    blobs = FsspecBlobs(directory / "blobs")
    weights, clock = BlobWeights(blobs), ManualClock(START)
    ensure_anchor(store, log, weights, blobs, MODEL, "onward-tiny", "local", probe_of, clock)
    batch = {"turns": turns, "min_turns": 2, "max_wait_s": 0.5, "backlog_turns": 100_000}
    settings = LearnerSettings.model_validate({**_SETTINGS, "batch": batch})
    learner = Learner(log, store, weights, blobs, settings, MODEL, directory / "learner", clock)
    return World(directory, log, store, blobs, weights, clock, learner)


def run(stage: Stage) -> None:
    """Step a stage until nothing is left to do."""
    rounds = Rounds(type(stage).__name__, stage)
    while rounds.step(0.0):
        pass


def files(directory: Path) -> Iterator[bytes]:
    """Yield what is in each file, as it lies there."""
    yield from (path.read_bytes() for path in directory.rglob("*") if path.is_file())
