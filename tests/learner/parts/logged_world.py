"""A logged past: turns really sampled from the shipped model, with rewards, in a real log and store."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import made_events
import torch
from changed_settings import changed
from ready_stores import open_ready
from safetensors.torch import load_file
from stepping import step
from torch import Tensor
from transformers import AutoModelForCausalLM

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.events import Completion, LogprobSpace, PolicyVersion, Release, Reward, Sampling, Topic, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, PolicyRef, SessionId, base_ref, new_inference_id
from core.model.probes import ProbeRecord
from core.ports import WeightsRef
from core.settings import LearnerSettings
from core.store import SqlStore
from ingest.sqlite.log import SqliteEventLog
from learner.model.ranks import ALONE, Ranks
from learner.sequences.resemblance import KeptOut
from learner.stage import Learner
from learner.versions.manifest import Manifest, decode
from learner.versions.probe import probe_of_model
from serving.releases import ensure_anchor
from serving.rendering import load_renderer
from serving.weights.published import BlobWeights

MODEL = Path(__file__).resolve().parents[3] / "models" / "tiny"
START = datetime(2026, 1, 1, tzinfo=UTC)
TEMPERATURE = 0.5


@lru_cache
def anchor_probe(model: Path) -> ProbeRecord:
    torch.set_num_threads(1)
    return probe_of_model(model, "cpu")


@lru_cache
def sampled_answers(
    count: int, temperature: float
) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]], ...]:
    """Return (prompt, answer, log-probabilities at the temperature), sampled by stock transformers."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    renderer = load_renderer(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    answers = []
    for number in range(count):
        prompt = renderer.render([{"role": "user", "content": f"[web] write total_{number}(xs): sum of xs"}], [])
        ids, logprobs = list(prompt), []
        with torch.inference_mode():
            while len(ids) - len(prompt) < 12:
                logits = model(torch.tensor([ids])).logits[0, -1] / temperature
                token = int(torch.multinomial(logits.softmax(-1), 1))
                logprobs.append(float(logits.log_softmax(-1)[token]))
                ids.append(token)
        answers.append((prompt, tuple(ids[len(prompt) :]), tuple(logprobs)))
    return tuple(answers)


@lru_cache
def tokenizer_digest() -> str:
    return load_renderer(MODEL).tokenizer_digest


def make_turn(number: int, *, temperature: float = 1.0, session: str | None = None, **changes: object) -> Completion:
    prompt, answer, logprobs = sampled_answers(24, temperature)[number % 24]
    session_id = SessionId(session or f"session-{number}")
    fields: dict[str, object] = {
        "inference_id": new_inference_id(session_id),
        "session_id": session_id,
        "turn_index": 0,
        "parent_id": None,
        "group_id": GroupId("group"),
        "namespace": Namespace("default"),
        "user_id": None,
        "workload": "write",
        "purpose": "turn",
        "received_at": START + timedelta(seconds=number),
        "messages": (),
        "sampling": Sampling(temperature=temperature, max_tokens=12),
        "prompt_token_ids": prompt,
        "token_ids": answer,
        "logprobs": logprobs,
        "logprob_space": LogprobSpace(temperature=temperature),
        "trainable": True,
        "policy": "onward-tiny",
        "policy_versions": (VersionSpan(start=0, end=len(answer), version=base_ref(1)),),
        "tokenizer_digest": tokenizer_digest(),
        "renderer": "r",
        "finish_reason": "length",
        "delivered_tokens": len(answer),
        "latency_ms": 1.0,
    }
    return Completion(**(fields | changes))  # type: ignore[arg-type]


def make_reward(turn: Completion, value: float, revision: int = 0, after_s: float = 2.0) -> Reward:
    return made_events.reward_of(turn, value, turn.received_at + timedelta(seconds=after_s), revision=revision)


@dataclass
class World:
    """All that one learner reads; `tell` puts turns into the store and rewards into the log."""

    directory: Path
    log: SqliteEventLog
    store: SqlStore
    blobs: FsspecBlobs
    weights: BlobWeights
    clock: ManualClock

    def tell(self, *pairs: tuple[Completion, Reward]) -> None:
        with self.store.work() as work:
            work.turns.put([turn for turn, _ in pairs])
        self.log.append_blocking(Topic.REWARDS, [reward for _, reward in pairs])
        self.clock.advance_to(max(reward.decided_at for _, reward in pairs))

    def release(self, version: int, state: str = "live") -> None:
        release = Release(
            version=base_ref(version),
            cluster="local",
            state=state,
            why="test",
            by="gate",
            at=self.clock.now(),  # type: ignore[arg-type]
        )
        with self.store.work() as work:
            work.releases.put(release)
        self.log.append_blocking(Topic.RELEASES, [release])

    def weights_of(self, version: PolicyRef) -> dict[str, Tensor]:
        """Return the tensors of a version as it is published."""
        with self.store.look() as view:
            policy = view.policies.get(version)
        assert policy is not None
        ref = WeightsRef(version=version, digest=policy.digest, path=policy.weights)
        return {name: tensor for shard in self.weights.open(ref).shards for name, tensor in load_file(shard).items()}

    def close(self) -> None:
        self.log.close()
        self.store.close()

    def learner(
        self,
        kept_out: Callable[[], KeptOut] = KeptOut,
        tokenizer: str | None = None,
        ranks: Ranks = ALONE,
        settings: Mapping[str, object] = {},
    ) -> Learner:
        """Return a learner; `settings` are given by path."""
        usual = {"batch.turns": 8, "batch.min_turns": 4, "checkpoints.max_lead": 100}
        options = changed(LearnerSettings(), {**usual, **settings})
        return Learner(
            self.log,
            self.store,
            self.weights,
            self.blobs,
            options,
            MODEL,
            self.directory / "learner",
            self.clock,
            kept_out,
            tokenizer,
            ranks,
        )


def open_world(directory: Path) -> World:
    """Create the world, or open it as it was left."""
    directory.mkdir(exist_ok=True)
    log = SqliteEventLog(directory / "log.db", 2, 0.01)
    store, blobs = open_ready(directory / "store.db"), FsspecBlobs(directory / "blobs")
    weights, clock = BlobWeights(blobs), ManualClock(START)
    ensure_anchor(store, log, weights, blobs, MODEL, "onward-tiny", "local", anchor_probe, clock)
    return World(directory, log, store, blobs, weights, clock)


def logged_past(count: int, seed: int = 0) -> list[tuple[Completion, Reward]]:
    rng = random.Random(seed)
    past = []
    for number in range(count):
        turn = make_turn(number)
        digits = f"{seed:04x}{number:08x}"
        turn_id = InferenceId(f"00000000-0000-7000-8000-{digits}")  # the same ids in every world
        turn = Completion(**{f: getattr(turn, f) for f in turn.__struct_fields__} | {"inference_id": turn_id})
        past.append((turn, make_reward(turn, rng.choice([1.0, -0.5, 0.25]))))
    return past


def settle(learner: Learner) -> None:
    """Step the learner until nothing is left to do."""
    while step(learner, 0.0):
        pass


def manifests(world: World) -> list[Manifest]:
    return [decode(world.blobs.get(path)) for path in world.blobs.list("manifests/")]


def lineage_of_newest(world: World) -> list[Manifest]:
    """Return the manifests of the newest version's lineage, from the anchor's first child."""
    by_version = {one.version: one for one in manifests(world)}
    version, lineage = max(by_version), []
    while version in by_version:
        lineage.insert(0, by_version[version])
        version = by_version[version].parent
    return lineage


def publications(world: World) -> list[PolicyRef]:
    """Return the versions in the log's publications, repeats included."""
    consumer = world.log.consumer("test", [Topic.POLICIES])
    records = consumer.poll(1000, 0.0)
    consumer.close()
    return [record.event.version for record in records if isinstance(record.event, PolicyVersion)]
