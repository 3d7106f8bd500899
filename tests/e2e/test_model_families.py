"""A small model of each family's architecture: served with tools, trained by one update, published and swapped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import made_events
import pytest
import torch
from changed_settings import changed
from family_models import write_model
from local_world import answers
from stepping import step

from api.turns.segments import segments_of
from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.errors import ConfigError
from core.events import Completion, LogprobSpace, Sampling, Topic, VersionSpan
from core.ids import GroupId, InferenceId, Namespace, SessionId, base_ref, new_inference_id
from core.ports import GenerateRequest, WeightsRef
from core.settings import LearnerSettings, LocalEngineSettings, ServingSettings
from core.store import SqlStore, open_sqlite
from ingest.sqlite.log import SqliteEventLog
from learner.stage import Learner
from learner.versions.probe import probe_of_model
from serving.engines.local import LocalEngine
from serving.engines.local.model import load_decoder
from serving.releases import ensure_anchor
from serving.rendering import ModelRenderer, load_renderer
from serving.weights.published import BlobWeights

START = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "reads",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
TURNS = 4
SERVED = [
    "Qwen 2.5", "Qwen 3", "Llama 3.1", "Mistral", "Mistral of pieces", "Gemma 3", "Gemma 4", "SmolLM2",
]  # fmt: skip
REFUSED = {
    "Qwen3-Coder": "a mixture of experts, which the local engine cannot load; SGLang can",
    "GLM 4.5": "a mixture of experts, which the local engine cannot load; SGLang can",
    "Qwen 3.5": "layers of type full_attention, linear_attention have no place in the slot cache",
    "DeepSeek V3.1": r"latent attention \(kv_lora_rank\) has no place in the slot cache",
    "gpt-oss": "a mixture of experts",
    "Gemma 2": "no attention with soft caps or sinks",
}


@dataclass
class Loop:
    """One engine and one learner on a family's model."""

    model: Path
    renderer: ModelRenderer
    engine: LocalEngine
    learner: Learner
    log: SqliteEventLog
    store: SqlStore
    clock: ManualClock

    def ask(self, number: int) -> Completion:
        """Ask with tools, where the model can be shown them, and return the turn as the API logs it."""
        tools = [] if self.renderer.tools_refused else TOOLS
        messages = [{"role": "user", "content": f"read file {number}"}]
        prompt = self.renderer.render(messages, tools)
        sampling = Sampling(max_tokens=10, seed=number)
        asked = GenerateRequest(
            inference_id=InferenceId("0"),
            prompt_token_ids=prompt,
            sampling=sampling,
            stop_token_ids=self.renderer.stop_token_ids,
        )
        (answer,) = answers(self.engine, asked)
        session = SessionId(f"session-{number}")
        return Completion(
            inference_id=new_inference_id(session),
            session_id=session,
            turn_index=0,
            parent_id=None,
            group_id=GroupId("group"),
            namespace=Namespace("default"),
            user_id=None,
            workload="chat",
            purpose="turn",
            received_at=START + timedelta(seconds=number),
            messages=tuple(messages),
            sampling=sampling,
            prompt_token_ids=prompt,
            token_ids=tuple(answer.token_ids),
            segments=segments_of(self.renderer, prompt, answer.token_ids, tools),
            logprobs=tuple(answer.logprobs),
            logprob_space=LogprobSpace(temperature=1.0),
            trainable=True,
            policy="family",
            policy_versions=(VersionSpan(start=0, end=len(answer.token_ids), version=self.engine.live_version),),
            tokenizer_digest=self.renderer.tokenizer_digest,
            renderer=self.renderer.name,
            finish_reason=answer.finish_reason or "error",
            delivered_tokens=len(answer.token_ids),
            latency_ms=1.0,
        )

    def learn(self, turns: list[Completion]) -> WeightsRef:
        """Reward the turns, let the learner update once, and return what it published."""
        rewards = [
            made_events.reward_of(turn, float(number % 2), turn.received_at + timedelta(seconds=2), revision=0)
            for number, turn in enumerate(turns)
        ]
        with self.store.work() as work:
            work.turns.put(turns)
        self.log.append_blocking(Topic.REWARDS, rewards)
        self.clock.advance_to(max(reward.decided_at for reward in rewards))
        while step(self.learner, 0.0):
            pass
        with self.store.look() as view:
            made = view.policies.get(base_ref(2))
        assert made is not None, "the learner published a version"
        assert made.turns == TURNS
        return WeightsRef(version=made.version, digest=made.digest, path=made.weights, parent=made.parent)


@contextmanager
def loop_of(name: str, directory: Path) -> Iterator[Loop]:
    torch.set_num_threads(1)
    model = write_model(directory / "model", name)
    log = SqliteEventLog(directory / "log.db", 2, 0.01)
    store, blobs = open_sqlite(directory / "store.db"), FsspecBlobs(directory / "blobs")
    weights, clock = BlobWeights(blobs), ManualClock(START)
    anchor = ensure_anchor(
        store, log, weights, blobs, model, "family", "local", lambda given: probe_of_model(given, "cpu"), clock
    )
    settings = ServingSettings(context_length=1024, local=LocalEngineSettings(slots=2))
    engine = LocalEngine(settings, model, weights, anchor)
    options = changed(
        LearnerSettings(),
        {"batch.turns": TURNS, "batch.min_turns": TURNS, "checkpoints.max_lead": 100, "optimizer.learning_rate": 1e-2},
    )
    learner = Learner(log, store, weights, blobs, options, model, directory / "learner", clock)
    engine.start()
    try:
        yield Loop(model, load_renderer(model), engine, learner, log, store, clock)
    finally:
        engine.close()
        learner.close()
        log.close()
        store.close()


@pytest.mark.parametrize("name", SERVED)
def test_a_model_is_served_trained_published_and_swapped(tmp_path: Path, name: str) -> None:
    with loop_of(name, tmp_path) as loop:
        turns = [loop.ask(number) for number in range(TURNS)]
        for turn in turns:
            assert turn.segments[0].start == 0
            assert turn.segments[-1].end == len(turn.token_ids) > 0
        prompt = b"".join(map(loop.renderer.token_bytes, turns[0].prompt_token_ids)).decode()
        assert ("read_file" in prompt) == (loop.renderer.tools_refused is None)

        ref = loop.learn(turns)
        loop.engine.load(ref)
        loop.engine.switch(ref.version)
        again = loop.ask(0)
        assert {span.version for span in again.policy_versions} == {ref.version}
        assert again.prompt_token_ids == turns[0].prompt_token_ids
        assert again.logprobs[0] != turns[0].logprobs[0], "other weights answer"


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_local_engine_cannot_compute_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]):
        load_decoder(write_model(tmp_path, name), ServingSettings())


def test_a_window_smaller_than_the_context_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path, "Gemma 3", window=512)
    with pytest.raises(ConfigError, match="2048 is more than the model's attention window of 512"):
        load_decoder(model, ServingSettings())
    load_decoder(model, ServingSettings(context_length=512))


def test_layers_that_differ_in_size_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Gemma 4's layers do that attend to everything."""
    with pytest.raises(ConfigError, match="layers that differ in head_dim have no place"):
        load_decoder(write_model(tmp_path, "Gemma 4", global_head=32), ServingSettings())
