"""Probes of the shipped model and of learned versions: recorded as they are, and confirmed by another forward pass."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from logged_world import MODEL, World, anchor_probe, logged_past, open_world, settle
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import learner.versions.probe
from core.errors import WeightsError
from core.events import PolicyVersion
from core.ids import ANCHOR, PolicyRef, base_ref
from core.model.beside import probe_path
from core.model.probe_prompts import probe_prompts
from core.model.probes import Logprobs, ProbeRecord, agrees, figures, get_probe, nearer
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from core.store import open_sqlite
from core.store.policies import Policies
from learner.model.policy_model import PolicyModel
from learner.publishing import Publisher
from learner.versions.probe import draw_probe_set, probe_of_model, record
from serving.releases import ensure_anchor
from serving.rendering import load_renderer

MakeWorld = Callable[[str], World]
Tensors = dict[str, Tensor]
# Nats: some ulps of float32 at the size of logits, 1e-6 each, with which other orders of summation differ.
ROUNDING = 5e-5


@lru_cache
def stock(dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval()


@torch.inference_mode()
def answers(tensors: Tensors, token_ids: Iterable[Iterable[int]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [P, L, V] log-probabilities of what follows each token, by stock transformers in `dtype`."""
    model = stock(dtype)
    model.load_state_dict({"lm_head.weight": tensors["model.embed_tokens.weight"], **tensors})
    return model(torch.tensor(token_ids)).logits.float().log_softmax(-1)  # type: ignore[no-any-return]


def measured(tensors: Tensors, of: ProbeRecord, dtype: torch.dtype = torch.float32) -> list[list[float]]:
    """Return the log-probabilities that an engine with these weights would answer."""
    targets_PL1 = torch.tensor(of.token_ids)[:, 1:, None]
    return answers(tensors, of.token_ids, dtype)[:, :-1].gather(2, targets_PL1)[..., 0].tolist()  # type: ignore[no-any-return]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def policy_of(world: World, version: int) -> PolicyVersion:
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return policy


def published(world: World, version: int) -> Tensors:
    """Return the tensors that a host fetches."""
    policy = policy_of(world, version)
    ref = WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights, parent=policy.parent)
    return {name: tensor for shard in world.weights.open(ref).shards for name, tensor in load_file(shard).items()}


def probe_of(world: World, version: int) -> ProbeRecord:
    return get_probe(world.blobs, base_ref(version), policy_of(world, version).digest)


def trained(world: World, batches: int, settings: Mapping[str, object] = {}) -> World:
    one = world.learner(
        settings={"admission.max_divergence": 1e9, "admission.min_ess": 0.0, **settings}
    )  # no batch leaves the weights as they are
    for seed in range(batches):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    one.close()
    return world


@pytest.fixture(scope="module")
def world_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], World]]:
    """Return a function that gives a world with three versions, learned at this rate."""
    made: dict[float, World] = {}

    def at(rate: float) -> World:
        if rate not in made:
            world = open_world(tmp_path_factory.mktemp("learned") / "world")
            made[rate] = trained(world, 3, settings={"optimizer.learning_rate": rate})
        return made[rate]

    yield at
    for world in made.values():
        world.close()


def gap(one: Logprobs, other: Logprobs) -> float:
    """Return the largest difference, in nats."""
    return float((torch.tensor(one) - torch.tensor(other)).abs().max())


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    torch.set_num_threads(1)
    return PolicyModel(MODEL, "cpu")


# ----------------------------------------------------------------------------------------------- drawing


def test_the_same_seed_draws_the_same_texts(policy: PolicyModel) -> None:
    first = draw_probe_set(policy, 0)
    assert draw_probe_set(policy, 0) == first
    assert draw_probe_set(policy, 1).token_ids != first.token_ids
    assert [len(text) for text in first.token_ids] == [64] * 16
    assert len(set(first.token_ids)) > 8


def test_the_choices_are_the_likeliest_of_the_model_that_draws(policy: PolicyModel) -> None:
    drawn = draw_probe_set(policy, 0)
    logp_PLV = answers(load_file(MODEL / "model.safetensors"), drawn.token_ids)[:, :-1]
    chosen_PLK = logp_PLV.gather(2, torch.tensor(drawn.choices))
    assert chosen_PLK.shape[-1] == 8
    torch.testing.assert_close(chosen_PLK, logp_PLV.topk(8).values, atol=1e-4, rtol=0)


def test_the_texts_are_the_models_own(policy: PolicyModel) -> None:
    """True samples have a mean log-probability of minus the entropy, here within five standard errors."""
    found = record(policy, draw_probe_set(policy, 0), "")
    logprobs = torch.tensor(found.logprobs)
    assert abs(float(logprobs.mean()) + found.entropy) < 5 * float(logprobs.std()) / logprobs.numel() ** 0.5


def test_a_short_context_bounds_the_texts(tmp_path: Path) -> None:
    """An engine is asked for one token after them."""
    short = tmp_path / "short"
    shutil.copytree(MODEL, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 20}))
    found = probe_of_model(short, "cpu")
    assert {len(text) for text in found.token_ids} == {19}


def test_texts_begin_with_the_prompts_and_go_on_as_the_model_would(policy: PolicyModel) -> None:
    prompts = [(1, 5, 9), tuple(range(10, 60)), tuple(range(300))]
    drawn = draw_probe_set(policy, 0, prompts)
    (length,) = {len(text) for text in drawn.token_ids}
    assert length == 160
    for number, text in enumerate(drawn.token_ids):
        begun = prompts[number % 3][-120:]
        assert text[: len(begun)] == begun, "of a long one the end, and room for an answer"
    assert len({text[50:] for text in drawn.token_ids}) > 8, "the same prompt, other answers"
    found = record(policy, drawn, "")
    assert found.finite
    answers_only = torch.tensor([row[129:] for row in found.logprobs])
    assert answers_only.mean() > -5, "they are the model's own"


def test_the_anchor_of_a_service_is_probed_where_users_are(policy: PolicyModel) -> None:
    renderer = load_renderer(MODEL)
    found = probe_of_model(MODEL, "cpu", probe_prompts(renderer))
    texts = ["".join(map(renderer.token_text, text)) for text in found.token_ids]
    assert sum("<|im_start|>assistant\n" in text for text in texts) >= 12


def test_a_broken_anchor_draws_nothing() -> None:
    broken = PolicyModel(MODEL, "cpu")
    with torch.no_grad():
        broken.model.get_output_embeddings().weight[7] = float("nan")
    with pytest.raises(WeightsError, match="not finite"):
        draw_probe_set(broken, 0)


# ----------------------------------------------------------------------------------------------- recording


def test_a_record_is_what_another_forward_says(policy: PolicyModel) -> None:
    found = anchor_probe(MODEL)
    tensors = load_file(MODEL / "model.safetensors")
    logp_PLV = answers(tensors, found.token_ids)[:, :-1]
    assert gap(measured(tensors, found), found.logprobs) < ROUNDING
    chosen_PLK = logp_PLV.gather(2, torch.tensor(found.choices))
    torch.testing.assert_close(torch.tensor(found.choice_logprobs), chosen_PLK, atol=1e-4, rtol=1e-5)
    assert found.entropy == pytest.approx(float(-(logp_PLV.exp() * logp_PLV).sum(-1).mean()), rel=1e-5)
    assert (found.finite, found.dtype) == (True, "float32")
    assert found.weights_digest == digest_of_shards([MODEL / "model.safetensors"])


def test_the_same_weights_give_the_same_bits_and_the_model_goes_on_training(policy: PolicyModel) -> None:
    policy.model.train()
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    state = torch.get_rng_state()
    first, again = (record(policy, anchor_probe(MODEL), "") for _ in range(2))
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.0
    assert first == again == msgspec.structs.replace(anchor_probe(MODEL), weights_digest="")
    assert policy.model.training
    assert torch.equal(torch.get_rng_state(), state), "what the learner draws next is changed"


def test_small_chunks_change_nothing(policy: PolicyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner.versions.probe, "_LOGITS_AT_A_TIME", 512 * 37)
    monkeypatch.setattr(learner.versions.probe, "_TEXTS_AT_A_TIME", 3)
    found = record(policy, anchor_probe(MODEL), "")
    assert gap(found.logprobs, anchor_probe(MODEL).logprobs) < ROUNDING
    assert found.entropy == pytest.approx(anchor_probe(MODEL).entropy, rel=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_recorded_as_such(value: float) -> None:
    """The value may be in one token that no text contains."""
    broken = PolicyModel(MODEL, "cpu")
    probe = anchor_probe(MODEL)
    said = {token for text in probe.token_ids for token in text} | {c for t in probe.choices for p in t for c in p}
    silent = next(token for token in range(512) if token not in said)
    with torch.no_grad():
        broken.model.get_output_embeddings().weight[silent] = value
    found = record(broken, probe, "")
    assert not found.finite
    assert not agrees(found.logprobs, found, "float32")


# ----------------------------------------------------------------------------------------------- publication


def test_a_learner_publishes_what_its_weights_say(world_at: Callable[[float], World]) -> None:
    world = world_at(4e-4)
    for version in (2, 3, 4):
        found, tensors = probe_of(world, version), published(world, version)
        assert found.token_ids == probe_of(world, 1).token_ids
        assert gap(measured(tensors, found), found.logprobs) < ROUNDING
    assert len({probe_of(world, version).logprobs for version in (1, 2, 3, 4)}) == 4


def test_who_reads_of_a_version_finds_its_probe(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, put_policy = make_world("a"), Policies.put
    seen: list[PolicyRef] = []

    def put(policies: Policies, policy: PolicyVersion) -> None:
        assert get_probe(world.blobs, policy.version, policy.digest).finite
        seen.append(policy.version)
        put_policy(policies, policy)

    monkeypatch.setattr(Policies, "put", put)
    trained(world, 1)
    assert seen == [base_ref(2)]


def test_a_learner_without_the_anchors_probe_says_so(make_world: MakeWorld) -> None:
    world = make_world("a")
    world.blobs.delete(probe_path(base_ref(1)))
    world.tell(*logged_past(8))
    one = world.learner()
    with pytest.raises(WeightsError, match="probes/00000001"):
        settle(one)
    one.close()


def test_a_resumed_learner_publishes_the_same_bits(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    path = probe_path(base_ref(3))
    undisturbed = trained(make_world("a"), 2).blobs.get(path)
    world = trained(make_world("b"), 1)

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    one = world.learner(settings={"admission.max_divergence": 1e9, "admission.min_ess": 0.0})
    world.tell(*logged_past(8, seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", cut_off)
        with pytest.raises(KeyboardInterrupt):
            settle(one)
    one.close()
    assert not world.blobs.exists(path)
    world.learner().close()
    assert world.blobs.get(path) == undisturbed


# ----------------------------------------------------------------------------------------------- the anchor


def anchor(world: World, model: Path, probes: Callable[[Path], ProbeRecord] = anchor_probe) -> WeightsRef:
    return ensure_anchor(
        world.store, world.log, world.weights, world.blobs, model, "tiny", "local", probes, world.clock
    )


def test_the_anchors_probe_is_made_once(make_world: MakeWorld) -> None:
    world = make_world("a")
    before = world.blobs.get(probe_path(base_ref(1)))
    anchor(world, MODEL, lambda model: pytest.fail("made again"))
    assert world.blobs.get(probe_path(base_ref(1))) == before
    assert probe_of(world, 1) == anchor_probe(MODEL)


def test_the_anchor_is_not_released_without_its_probe(make_world: MakeWorld, tmp_path: Path) -> None:
    """The start may also be interrupted there; the next start completes it."""
    made = make_world("a")
    made.blobs.delete(probe_path(base_ref(1)))
    world = replace(made, store=open_sqlite(tmp_path / "fresh.db"))

    def cut_short(model: Path) -> ProbeRecord:
        raise WeightsError(f"{model}: no memory is left")

    def live() -> PolicyRef | None:
        with world.store.look() as view:
            return view.releases.live("local")

    try:
        with pytest.raises(WeightsError, match="no memory"):
            anchor(world, MODEL, cut_short)
        assert live() is None
        anchor(world, MODEL)
        assert live() == ANCHOR
        assert probe_of(world, 1) == anchor_probe(MODEL)
    finally:
        world.store.close()


def test_a_directory_from_before_probes_gets_one(make_world: MakeWorld) -> None:
    world = make_world("a")
    world.blobs.delete(probe_path(base_ref(1)))
    anchor(world, MODEL)
    assert probe_of(world, 1) == anchor_probe(MODEL)


def test_a_directory_from_before_probes_takes_none_of_another_model(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world("a")
    world.blobs.delete(probe_path(base_ref(1)))
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="other: its weights are"):
        anchor(world, other, lambda model: probe_of_model(model, "cpu"))
    assert not world.blobs.exists(probe_path(base_ref(1)))


# ----------------------------------------------------------------------------------------------- confirming


def test_the_label_lies(make_world: MakeWorld) -> None:
    """The engine claims to serve 3 and serves 2, at the least learning rate: float32 detects it."""
    world = trained(make_world("a"), 2, settings={"optimizer.learning_rate": 1e-6})
    own, parent = probe_of(world, 3), probe_of(world, 2)
    honest, stale = (measured(published(world, version), own) for version in (3, 2))
    assert agrees(honest, own, "float32")
    assert nearer(honest, own, parent, "float32") == "own"
    assert not agrees(stale, own, "float32")
    assert nearer(stale, own, parent, "float32") == "parent"
    halves = [measured(published(world, version), own, torch.bfloat16) for version in (3, 2)]
    assert all(agrees(half, own, "bfloat16") for half in halves)
    assert {nearer(half, own, parent, "bfloat16") for half in halves} == {"indistinguishable"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_label_lies_at_large_steps_in_half_precision(
    world_at: Callable[[float], World], dtype: torch.dtype
) -> None:
    world = world_at(2e-3)
    own, parent = probe_of(world, 3), probe_of(world, 2)
    honest, stale = (measured(published(world, version), own, dtype) for version in (3, 2))
    assert agrees(honest, own, name_of(dtype))
    assert not agrees(stale, own, name_of(dtype))
    assert nearer(honest, own, parent, name_of(dtype)) == "own"
    assert nearer(stale, own, parent, name_of(dtype)) == "parent"


def swapped(tensors: Tensors) -> None:
    first, second = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
    tensors[first], tensors[second] = tensors[second], tensors[first]


def zeroed(tensors: Tensors) -> None:
    tensors["model.layers.2.mlp.down_proj.weight"].zero_()


def one_weight_off(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 0.05


@pytest.mark.parametrize(
    ("dtype", "damage", "holds"),
    [
        (torch.float32, swapped, False),
        (torch.float32, zeroed, False),
        (torch.float32, one_weight_off, False),
        (torch.bfloat16, swapped, False),
        (torch.bfloat16, zeroed, False),
        (torch.bfloat16, one_weight_off, True),  # below what half precision can tell
    ],
)
def test_damage_is_found(dtype: torch.dtype, damage: Callable[[Tensors], None], holds: bool) -> None:
    found, tensors = anchor_probe(MODEL), load_file(MODEL / "model.safetensors")
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    assert agrees(measured(whole, found, dtype), found, name_of(dtype))
    damage(whole)
    assert bool(agrees(measured(whole, found, dtype), found, name_of(dtype))) == holds


# ----------------------------------------------------------------------------------------------- the gate's figures


@pytest.mark.parametrize(("learning_rate", "share"), [(1e-4, 0.9), (4e-4, 0.8), (2e-3, 0.55)])
def test_the_divergence_from_records_is_near_the_exact_one(
    world_at: Callable[[float], World], learning_rate: float, share: float
) -> None:
    world = world_at(learning_rate)
    for own, live in ((2, 1), (4, 1), (4, 3)):
        record = probe_of(world, own)
        own_PLV, live_PLV = (answers(published(world, version), record.token_ids)[:, :-1] for version in (own, live))
        exact = float((own_PLV.exp() * (own_PLV - live_PLV)).sum(-1).mean())
        found = figures(record, probe_of(world, live))["kl_to_live"]
        assert share * exact < found <= exact + 1e-6
