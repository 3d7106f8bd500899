"""The learner's loop: rewards become versions, deterministically, once, on one lineage."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from kept_spans import kept_spans
from logged_world import (
    World,
    lineage_of_newest,
    logged_past,
    make_reward,
    make_turn,
    manifests,
    settle,
    tokenizer_digest,
)
from msgspec.structs import replace

from core import tracing
from core.errors import ConfigError, LogUnavailable
from core.events import Segment, SuiteKeptOut, ToolCall
from core.ids import base_ref
from core.operations.alarms import StoredAlarm
from core.operations.consents import UNSAID, ConsentSubject
from core.ports import WeightsRef
from core.unstored import without_words
from learner.sequences.resemblance import KeptOut, SuiteSolutions
from learner.stage import Learner
from learner.versions.manifest import decode, encode, kept_out_of_all, prove_exactly_once

MakeWorld = Callable[[str], World]


def published(world: World) -> list[int]:
    with world.store.look() as view:
        return [policy.version.version for policy, _ in view.policies.newest(100)][::-1]


def digest(world: World, version: int) -> str:
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return policy.digest


def test_rewards_become_versions(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    world.tell(*logged_past(20))
    settle(learner)
    assert published(world) == [1, 2, 3, 4]  # 8 + 8 at once, and 4 that have waited long enough
    made = manifests(world)
    assert [len(one.turns) for one in made] == [8, 8, 4]
    assert [one.parent.version for one in made] == [1, 2, 3]
    assert prove_exactly_once(made) == 20
    with world.store.look() as view:
        policy = view.policies.get(base_ref(2))
    assert policy is not None
    assert policy.turns == len(policy.outcome_arrivals) == 8
    world.weights.open(WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights))
    learner.close()


def test_turns_are_traced_until_a_version_that_learned_from_them_is_live(make_world: MakeWorld) -> None:
    """A version goes live with all that those between it and the live one before had learned."""
    world, past = make_world("a"), logged_past(12)
    learner = world.learner()
    with kept_spans() as kept:
        world.tell(*past)
        settle(learner)
        assert {name for turn, _ in past for name in kept.of_turn(turn.inference_id)} == {"update", "publish"}
        world.release(3)
        settle(learner)
        spans = [kept.of_turn(turn.inference_id) for turn, _ in past]
        roots = [tracing.root_of(turn.inference_id) for turn, _ in past]
    learner.close()
    first, second = (tracing.root_of_version(base_ref(version)) for version in (2, 3))
    assert [each["update"].links for each in spans] == [(first,)] * 8 + [(second,)] * 4
    assert [each["publish"].links for each in spans] == [(first,)] * 8 + [(second,)] * 4
    assert [each["live"].links for each in spans] == [(second,)] * 12
    origins = {span.place: span.links for span in kept.spans if span.parent is None}
    assert origins == {first: tuple(roots[:8]), second: tuple(roots[8:])}


def test_the_same_log_gives_the_same_weights(make_world: MakeWorld) -> None:
    digests = []
    for name in ("a", "b"):
        world = make_world(name)
        learner = world.learner(settings={"seed": 5})
        world.tell(*logged_past(24))
        settle(learner)
        learner.close()
        digests.append([digest(world, version) for version in published(world)])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4


def test_a_seed_changes_the_weights(make_world: MakeWorld) -> None:
    found = []
    for name, seed in (("a", 1), ("b", 2)):
        world = make_world(name)
        learner = world.learner(settings={"seed": seed})
        world.tell(*logged_past(16))
        settle(learner)
        learner.close()
        found.append(digest(world, 3))
    assert found[0] != found[1]


def test_a_restart_goes_on_in_the_same_bits(make_world: MakeWorld) -> None:
    whole, parted = make_world("whole"), make_world("parted")
    past = logged_past(32)
    for world, restarts in ((whole, False), (parted, True)):
        learner = world.learner()
        for start in range(0, 32, 8):
            world.tell(*past[start : start + 8])
            settle(learner)
            if restarts:
                learner.close()
                learner = world.learner()
        learner.close()
    assert [digest(whole, v) for v in published(whole)] == [digest(parted, v) for v in published(parted)]
    assert prove_exactly_once(manifests(parted)) == 32


def test_rewards_seen_twice_train_once(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    world.tell(*past)
    settle(learner)
    assert published(world) == [1, 2]
    learner.close()


def test_a_correction_applies_the_difference(make_world: MakeWorld) -> None:
    """New minus applied reward over the recorded scale: the credits sum to the latest revision's."""
    world = make_world("a")
    learner = world.learner()
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.5, revision=1, after_s=30)) for turn, _ in past])
    settle(learner)
    first, second = manifests(world)
    before = {record.inference_id: record for record in first.turns}
    for record in second.turns:
        original = before[record.inference_id]
        assert record.applied_revision == 0
        assert record.scale == original.scale
        credits = original.credit + record.credit
        assert abs(credits - (record.reward - original.baseline) / original.scale) < 1e-5
    assert prove_exactly_once([first, second]) == 16
    learner.close()


def test_what_is_void_never_trains_and_is_taken_back_where_it_has(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    (trained, _), untrained = past[0], make_turn(30)
    void = [(turn, replace(make_reward(turn, 0.0, revision=1, after_s=60), void=True)) for turn in (trained, untrained)]
    world.tell((untrained, make_reward(untrained, -0.5)), *void, *logged_past(24)[16:])
    settle(learner)
    records = [record for manifest in manifests(world) for record in manifest.turns]
    assert learner.left_out == {"void": 1}
    assert untrained.inference_id not in {record.inference_id for record in records}
    taken_back = [record for record in records if record.inference_id == trained.inference_id]
    assert [(record.revision, record.reward) for record in taken_back][1:] == [(1, 0.0)]
    learner.close()


def test_what_was_withdrawn_trains_no_more_and_is_taken_back_where_it_has(make_world: MakeWorld) -> None:
    """Consent is asked for before each batch, so a better reward of a turn that trained teaches nothing, either."""
    world = make_world("a")
    learner = world.learner()
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    (trained, _), untrained = past[0], make_turn(30)
    with world.store.work() as work:
        for turn in (trained, untrained):
            subject = ConsentSubject(turn.namespace, "session", turn.session_id)
            withdrawn = UNSAID.changed(learn=False, store=None, now=turn.received_at, by="plugin")
            work.consents.put(subject, withdrawn, takes_back=True)
    praised = make_reward(trained, 2.0, revision=1, after_s=60)
    void = replace(make_reward(trained, 0.0, revision=2, after_s=90), void=True)
    world.tell((trained, praised), (untrained, make_reward(untrained, 1.0)), *logged_past(24)[16:])
    settle(learner)
    assert learner.left_out == {"no_consent": 2}
    world.tell((trained, void), *logged_past(32)[24:])
    settle(learner)
    records = [record for manifest in manifests(world) for record in manifest.turns]
    assert untrained.inference_id not in {record.inference_id for record in records}
    taught = [(each.revision, each.reward) for each in records if each.inference_id == trained.inference_id]
    assert taught[1:] == [(2, 0.0)]
    learner.close()


def test_what_may_not_train_does_not(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    world.tell(*logged_past(8))
    whole = make_turn(34)
    barred = [
        make_turn(30, learn=False),
        make_turn(31, trainable=False, untrainable_reasons=("top_p",)),
        make_turn(32, logprobs=(math.nan, *make_turn(32).logprobs[1:])),
        make_turn(33, segments=(Segment(start=0, end=12, kind="forced"),)),
        make_turn(35, logprobs=make_turn(35).logprobs[1:]),
        make_turn(36, prompt_token_ids=(1,) * 100_000),
        without_words(make_turn(37)),
    ]
    world.tell(*[(turn, make_reward(turn, 1.0)) for turn in barred], (whole, make_reward(whole, math.inf)))
    barred.append(whole)
    world.tell(*logged_past(16, seed=9))
    settle(learner)
    trained = {record.inference_id for one in manifests(world) for record in one.turns}
    assert not trained & {turn.inference_id for turn in barred}
    drops = {why for one in manifests(world) for why in one.drops}
    wanted = {"no_consent", "untrainable", "not_finite", "empty", "incomplete_capture", "over_context", "not_stored"}
    assert drops == wanted
    learner.close()


def test_what_another_tokenizer_made_does_not_train(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(tokenizer=tokenizer_digest())
    alien = make_turn(30, tokenizer_digest="another")
    world.tell((alien, make_reward(alien, 1.0)), *logged_past(8))
    settle(learner)
    assert [made.drops for made in manifests(world)] == [{"other_tokenizer": (alien.inference_id,)}]
    learner.close()


def test_what_recalls_an_eval_case_does_not_train(make_world: MakeWorld) -> None:
    """The text or a call may hold the solution; other answers train. The version says which suite left out how many."""
    world = make_world("a")
    solution = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result"
    ours = SuiteSolutions("ours", "d1", {"sum of a list": solution})
    theirs = SuiteSolutions("theirs", "d2", {"sum": solution + "\n# of numbers", "first": "the first of many words"})
    learner = world.learner(lambda: KeptOut([ours, theirs]))
    world.tell(*logged_past(8))
    call = ToolCall(id="c", name="edit", arguments=json.dumps({"path": "a.py", "content": solution}), index=0)
    said, wrote = make_turn(30, text=f"Here you are:\n{solution}\n"), make_turn(31, tool_calls=(call,))
    other = make_turn(32, text="def first(xs):\n    return xs[0] if xs else None")
    world.tell(*[(turn, make_reward(turn, 1.0)) for turn in (said, wrote, other)])
    world.tell(*logged_past(16, seed=9))
    settle(learner)
    trained = {record.inference_id for one in manifests(world) for record in one.turns}
    assert other.inference_id in trained
    assert not trained & {said.inference_id, wrote.inference_id}
    dropped = [turn for one in manifests(world) for turn in one.drops.get("eval_solution", ())]
    assert sorted(dropped) == sorted([said.inference_id, wrote.inference_id])
    with world.store.look() as view:
        policies = [policy for policy, _ in view.policies.newest(100) if policy.parent is not None]
    assert [policy.kept_out for policy in policies[::-1]] == [one.kept_out for one in manifests(world)]
    left_out = Counter[tuple[str, str, int]]()
    for suite in (suite for policy in policies for suite in policy.kept_out):
        left_out[suite.suite, suite.digest, suite.solutions] += suite.turns
    assert left_out == {("ours", "d1", 1): 2, ("theirs", "d2", 2): 2}
    learner.close()


def test_a_case_that_is_added_while_the_learner_runs_is_kept_out_from_then_on(make_world: MakeWorld) -> None:
    """Of a version that has no suites, the record says so; one of a former build says nothing."""
    world, solution = make_world("a"), "def total(xs): return sum(xs) if xs else 0"
    suites: list[SuiteSolutions] = []
    learner = world.learner(lambda: KeptOut(suites))
    early, late = make_turn(30, text=solution), make_turn(31, text=solution)
    world.tell(*logged_past(7), (early, make_reward(early, 1.0)))
    settle(learner)
    suites.append(SuiteSolutions("ours", "d1", {"sum": solution}))
    world.tell((late, make_reward(late, 1.0)), *logged_past(8, seed=9))
    settle(learner)
    first, second = lineage_of_newest(world)
    assert early.inference_id in {record.inference_id for record in first.turns}
    assert second.drops == {"eval_solution": (late.inference_id,)}
    assert (first.kept_out, second.kept_out) == ((), (SuiteKeptOut(suite="ours", digest="d1", solutions=1, turns=1),))
    praised = make_reward(early, 2.0, revision=1, after_s=60)
    withdrawn = replace(make_reward(early, 0.0, revision=2, after_s=90), void=True)
    for number, correction in enumerate((praised, withdrawn)):
        world.tell((early, correction), *logged_past(8, seed=10 + number))
        settle(learner)
    third, *later = lineage_of_newest(world)[2:]
    assert third.drops == {"eval_solution": (early.inference_id,)}, "nothing more of it is learned"
    taken_back = [record for one in later for record in one.turns if record.inference_id == early.inference_id]
    assert [(record.revision, record.reward) for record in taken_back] == [(2, 0.0)]
    former = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(encode(second)))
    del former["kept_out"]
    assert decode(zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(former))).kept_out == ()
    learner.close()


def test_a_version_of_several_updates_names_the_suites_that_all_of_them_kept_out() -> None:
    def kept(suite: str, digest: str, turns: int) -> SuiteKeptOut:
        return SuiteKeptOut(suite=suite, digest=digest, solutions=1, turns=turns)

    one, other = (kept("a", "d1", 1), kept("b", "d2", 2)), (kept("b", "d3", 3), kept("a", "d1", 4))
    assert kept_out_of_all([one, other]) == (kept("a", "d1", 5),)
    assert kept_out_of_all([one, ()]) == ()


def test_an_update_that_is_no_number_is_skipped_kept_and_alarmed(make_world: MakeWorld) -> None:
    """The reward is finite in the log but not in float32: weights, optimizer and baseline stay as they were."""
    world = make_world("a")
    learner = world.learner()
    before = fingerprint(learner)
    spoilt = make_turn(40)
    world.tell((spoilt, make_reward(spoilt, 1e39)), *logged_past(7))
    settle(learner)
    assert fingerprint(learner) == before
    assert not manifests(world)
    (kept,) = (world.directory / "learner" / "skipped").iterdir()
    dumped = json.loads(kept.read_text())
    assert "gradient_norm" in dumped["why"]
    assert dumped["batch"][0]["turn"]["inference_id"] == spoilt.inference_id
    assert len(dumped["batch"]) == 8
    (alarm,) = open_alarms(world)
    assert (alarm.opening.monitor, alarm.opening.severity) == ("non_finite_loss", "critical")
    world.tell(*logged_past(8, seed=9))
    settle(learner)
    (made,) = manifests(world)
    assert spoilt.inference_id in made.drops["non_finite_loss"]
    assert open_alarms(world), "until an operator has seen it"
    with world.store.work() as work:
        work.alarms.acknowledge(alarm.alarm_id, "op", None, world.clock.now())
    world.tell(*logged_past(8, seed=10))
    settle(learner)
    assert not open_alarms(world)
    learner.close()


def fingerprint(learner: Learner) -> str:
    state = learner._rank_group._state
    tensors = [*state.policy.model.state_dict().values(), *state.advantages.state_dict()["head"].values()]
    moments = [str(state.optimizer.state_dict()["state"]), str(state.advantages.state_dict()["optimizer"]["state"])]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors) + "".join(moments).encode()).hexdigest()


def open_alarms(world: World) -> list[StoredAlarm]:
    with world.store.look() as view:
        return view.alarms.that_are_open()


def test_stale_turns_train_the_baseline_alone(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings={"admission.max_divergence": 0.5, "admission.min_ess": 0.0})
    past = logged_past(7)
    alien = make_turn(40, logprobs=tuple(value - 4.0 for value in make_turn(40).logprobs))
    world.tell(*past, (alien, make_reward(alien, 1.0)))
    settle(learner)
    (only,) = manifests(world)
    assert {record.inference_id for record in only.turns if record.dropped} == {alien.inference_id}
    assert {record.dropped for record in only.turns} == {None, "too_divergent"}
    learner.close()


def test_old_outcomes_are_bounded_by_kind(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings={"admission.max_outcome_age_s": {"accepted": 10.0}})
    late = make_turn(50)
    world.tell(*logged_past(7), (late, make_reward(late, 1.0, after_s=11)))
    settle(learner)
    assert [r.dropped for one in manifests(world) for r in one.turns if r.inference_id == late.inference_id] == [
        "too_old"
    ]
    learner.close()


def test_it_waits_until_its_version_serves_somebody_and_goes_back_to_what_serves(make_world: MakeWorld) -> None:
    world = make_world("a")
    settings = {"checkpoints.max_lead": 1}
    learner = world.learner(settings=settings)
    world.tell(*logged_past(40))
    settle(learner)
    assert published(world) == [1, 2]
    for version in (2, 3):  # a canary's lane follows
        world.release(version, "canary")
        learner.close()
        learner = world.learner(settings=settings)
        settle(learner)
        assert published(world)[-1] == version + 1
    world.release(4, "rejected")
    settle(learner)
    assert manifests(world)[-1].parent == base_ref(3), "the lane's newest serves"
    world.release(3, "rolled_back")
    world.release(2, "rolled_back")
    settle(learner)
    assert manifests(world)[-1].parent == base_ref(1)
    learner.close()


def test_after_a_rollback_it_goes_on_from_what_serves(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    world.tell(*logged_past(16))
    settle(learner)
    world.release(2)
    world.release(3)
    world.release(3, "rolled_back")
    world.release(2)
    world.tell(*logged_past(8, seed=2))
    settle(learner)
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent) == (base_ref(4), base_ref(2))
    lineage = [one for one in manifests(world) if one.version != base_ref(3)]
    assert prove_exactly_once(lineage) == 16
    learner.close()


def test_a_directory_has_one_learner(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    with pytest.raises(ConfigError, match=r"learner: another learner works here"):
        world.learner()
    learner.close()
    world.learner().close()


def test_a_learner_that_cannot_be_made_holds_nothing(make_world: MakeWorld) -> None:
    """The caller tries again, and may still hold the exception."""
    world = make_world("a")
    log = world.log

    class Unreachable(type(log)):  # type: ignore[misc]
        def reader(self, topics: Any) -> Any:
            raise LogUnavailable("not connected yet")

    log.__class__ = Unreachable
    with pytest.raises(LogUnavailable) as failure:
        world.learner()
    log.__class__ = Unreachable.__base__
    world.learner().close()
    assert failure.value.__traceback__ is not None  # which holds on to what was half made
