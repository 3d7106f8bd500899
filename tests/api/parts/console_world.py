"""A store as the writer and the scorer fill it while users work with a few versions."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import made_events
import msgspec
from byte_renderer import END, call_ids, ids

from core.events import (
    Arm,
    Completion,
    Credit,
    GateVerdict,
    Hint,
    LogprobSpace,
    Outcome,
    PolicyVersion,
    Release,
    ReleaseState,
    Reward,
    Sampling,
    SuiteKeptOut,
    TextEdit,
    TokenRange,
    ToolCall,
    ToolCallTarget,
    VersionSpan,
)
from core.ids import GroupId, InferenceId, Namespace, OutcomeId, SessionId, UserHash, base_ref
from core.operations.fleet import Experiment
from core.ports import Store

TURNS = 240
VERSIONS = 6
CLIENTS = ("openai-python", "codex", None)  # by turns of a session; None: of before it was noted
SCRIPT = "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>"
TURNED = "\u202esi ti sa ton"
"""What a page shows from right to left: as something else than it says."""


SPANNED = InferenceId("turn-with-spans")


def fill(store: Store, start: datetime, namespace: str = "default") -> None:
    """Write `TURNS` turns, one a second from `start`, which get better with time.

    Each version answers equally many; the last one is a canary."""
    with store.work() as work:
        for number in range(1, VERSIONS + 1):
            version = work.policies.allocate(start)
            work.policies.put(policy(version.version, start + timedelta(seconds=30 * number)))
            states: tuple[ReleaseState, ...] = ("candidate", "canary") if number == VERSIONS else ("candidate", "live")
            for state in states:
                at = start + timedelta(seconds=30 * number + 10)
                why = "a canary" if state == "canary" else f"within its bounds {SCRIPT}"
                release = Release(version=version, cluster="local", state=state, why=why, by="gate", at=at)
                work.releases.put(release)
            if 1 < number < VERSIONS:
                retired = Release(
                    version=base_ref(number - 1), cluster="local", state="retired", why="x", by="gate", at=at
                )
                work.releases.put(retired)
        work.experiments.put(experiment(start))
        said = [turn(number, start, namespace) for number in range(TURNS)]
        work.turns.put(said)
        work.outcomes.put([outcome for each in said for outcome in outcomes(each)])
        work.rewards.put([(0, reward) for each in said for reward in revisions(each)])


def put_spanned(store: Store, start: datetime) -> None:
    """Write a turn of whose parts users said something: a call was rejected, and a word of the answer changed."""
    answer = (*ids("I log it. "), *call_ids("edit_file", {"text": "print(x)"}), END)
    made = ToolCall(
        id="call_0", name="edit_file", arguments='{"text": "print(x)"}', index=0,
        token_range=TokenRange(start=10, end=len(answer) - 1),
    )  # fmt: skip
    said = msgspec.structs.replace(
        turn(0, start), inference_id=SPANNED, session_id=SessionId("session-with-spans"), text="I log it. ",
        token_ids=answer, logprobs=(-0.1,) * len(answer), tool_calls=(made,), tokenizer_digest="bytes-1",
        policy_versions=(VersionSpan(start=0, end=len(answer), version=base_ref(1)),),
    )  # fmt: skip
    edit = TextEdit(start=2, end=5, token_ids=ids("note"))
    rejected, edited = outcomes(turn(1, start))
    about = {"inference_id": SPANNED, "session_id": None}
    told = [
        msgspec.structs.replace(
            rejected, **about, outcome_id=OutcomeId("o-1"), name="rejected", value=True,
            target_call=ToolCallTarget(tool_call_id="call_0"), evidence="use our logger, not print",
        ),
        msgspec.structs.replace(
            edited, **about, outcome_id=OutcomeId("o-2"), name="edited", value=0.5, edits=(edit,),
            evidence="I note it. ",
        ),
    ]  # fmt: skip
    end = len(answer)
    credits = [(0, 2, 0.5), (2, 5, 0.0), (5, 10, 0.5), (10, end - 1, -0.25), (end - 1, end, 0.5)]
    value = msgspec.structs.replace(
        reward(said, 0, {"edited": 0.25, "rejected": -0.5}),
        value=-0.25, outcome_ids=(OutcomeId("o-1"), OutcomeId("o-2")), edits=(edit,),
        credits=tuple(Credit(start=first, end=last, value=worth) for first, last, worth in credits),
        hints=(Hint(start=10, end=end - 1, text="use our logger, not print", outcome_id=OutcomeId("o-1")),),
    )  # fmt: skip
    with store.work() as work:
        work.turns.put([said])
        work.outcomes.put(told)
        work.rewards.put([(0, value)])


def put_rewarded(
    store: Store, version: int | None, values: Sequence[float], start: datetime, first: int, arm: Arm = "live"
) -> None:
    """Write a turn of this version, in a session of its own, and its reward for each value.

    They come a second each, from the second `first` on. `version` None: the turns have no tokens."""
    told = []
    for number, value in enumerate(values, first):
        spans = () if version is None else (VersionSpan(start=0, end=9, version=base_ref(version)),)
        name = f"v{version}-{arm}-{number:06}"
        changes: dict[str, Any] = {"inference_id": InferenceId(name), "session_id": SessionId(f"session-{name}")}
        changes |= {"arm": arm, "policy_versions": spans, "received_at": start + timedelta(seconds=number)}
        told.append((msgspec.structs.replace(turn(number, start), **changes), value))
    with store.work() as work:
        if not work.policies.newest(1):
            for _ in range(3):
                work.policies.put(policy(work.policies.allocate(start).version, start))
        work.turns.put([said for said, _ in told])
        work.rewards.put([(0, reward(said, 0, {"accepted": value})) for said, value in told])


def some_good(count: int, share: float) -> list[float]:
    """Return rewards of which that share, in tenths, is 1 and the rest 0."""
    return [float(number % 10 < 10 * share) for number in range(count)]


def inference_id(number: int) -> InferenceId:
    return InferenceId(f"turn-{number:05}")


def policy(version: int, at: datetime) -> PolicyVersion:
    verdict = GateVerdict(action="pass", why="no worse by 5.0%", figures={"cases": 40}) if version == VERSIONS else None
    return PolicyVersion(
        version=base_ref(version),
        policy="base",
        digest="d",
        parent=base_ref(version - 1) if version > 1 else None,
        manifest=None,
        log_offsets={"onward.rewards:0": 0},
        turns=32,
        updates=4,
        metrics=figures(version) if version > 1 else {},
        outcome_arrivals=tuple(at - timedelta(seconds=wait) for wait in range(1, 33)) if version > 1 else (),
        weights="w",
        created_at=at,
        verdict=verdict,
        kept_out=(SuiteKeptOut(suite="evals/cases", digest="d" * 64, solutions=40, turns=3),) if verdict else (),
    )


def figures(version: int) -> dict[str, float]:
    """Return the figures of an update."""
    names = ("loss", "policy_loss", "kl_loss", "entropy_loss", "ratio_p01", "ratio_p50", "ratio_p99", "ratio_max")
    names += ("truncated", "masked", "kept_share", "kl", "entropy", "explained_variance", "gradient_norm")
    names += ("versions_behind", "versions_behind_max", "positions_per_s", "tokens_per_s", "mfu", "value_loss")
    names += ("ess", "divergence", "kto_loss", "reward_mass_1m", "reward_mass_older", "untrained_mass_1h")
    spent = ("waiting", "reading", "updating", "publishing")
    return {name: place / version for place, name in enumerate(names)} | {f"seconds_{name}": 0.5 for name in spent}


def experiment(start: datetime) -> Experiment:
    return Experiment(
        experiment_id="e",
        cluster="local",
        canary=base_ref(VERSIONS),
        control=base_ref(VERSIONS - 1),
        share=0.2,
        salt="s",
        started_at=start,
        figures={"difference": 0.031, "p_value": 0.2},
    )


def is_good(number: int) -> bool:
    return number % 10 < 3 + 6 * number // TURNS


def turn(number: int, start: datetime, namespace: str = "default") -> Completion:
    version = 1 + number * VERSIONS // TURNS
    said = (*ids(f"sum of {number}"), END)
    calls = (ToolCall(id="c", name="run_tests", arguments=json.dumps({"path": "x"}), index=0),) * (number % 2)
    return Completion(
        inference_id=inference_id(number),
        session_id=SessionId(f"session-{number // 3:05}"),
        turn_index=number % 3,
        parent_id=inference_id(number - 1) if number % 3 else None,
        group_id=GroupId("g"),
        namespace=Namespace(namespace),
        user_id=UserHash(f"{number // 12:04x}-of-a-user"),
        client=CLIENTS[number // 3 % len(CLIENTS)],
        protocol="responses" if number // 3 % len(CLIENTS) == 1 else "chat",
        ignored=("verbosity",) if number // 3 % len(CLIENTS) == 1 else (),
        workload="suggestion" if number % 5 == 4 else "chat",
        purpose="turn",
        received_at=start + timedelta(seconds=number),
        messages=(
            {"role": "system", "content": "You are an assistant in an editor."},
            {"role": "user", "content": f"write total{number}(xs) {SCRIPT}"},
        ),
        sampling=Sampling(),
        prompt_token_ids=ids("write total"),
        token_ids=said,
        logprobs=tuple(-0.04 * (place % 7) ** 2 for place in range(len(said))),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="base",
        arm="canary" if version == VERSIONS else "live",
        policy_versions=(
            VersionSpan(start=0, end=4, version=base_ref(max(1, version - 1))),
            VersionSpan(start=4, end=len(said), version=base_ref(version)),
        ),
        tokenizer_digest="bytes-1",
        renderer="bytes",
        finish_reason="stop",
        text=f"sum of {number}",
        tool_calls=calls,
        delivered_tokens=len(said),
        latency_ms=250.0 + number,
    )


def outcomes(turn: Completion) -> list[Outcome]:
    number = int(turn.inference_id[-5:])
    told = [("accepted", is_good(number)), ("comment", f"comment {number} {SCRIPT}{TURNED}")]
    return [
        Outcome(
            outcome_id=OutcomeId(f"{turn.inference_id}-{name}"),
            inference_id=turn.inference_id,
            session_id=turn.session_id,
            namespace=turn.namespace,
            name=name,
            value=value,
            observed_at=turn.received_at + timedelta(seconds=place + 2),
            received_at=turn.received_at + timedelta(seconds=place + 2),
        )
        for place, (name, value) in enumerate(told)
    ]


def revisions(turn: Completion) -> list[Reward]:
    """Return a turn's rewards: every eighth turn has a later correction."""
    number = int(turn.inference_id[-5:])
    first = reward(turn, 0, {"accepted": 1.0 if is_good(number) else 0.0, "effort": -0.1})
    return [first, reward(turn, 1, {"accepted": 0.0, "rejected": -0.5})] if number % 8 == 7 else [first]


def reward(turn: Completion, revision: int, components: dict[str, float]) -> Reward:
    at = turn.received_at + timedelta(seconds=2 + revision)
    return made_events.reward_of(
        turn,
        sum(components.values()),
        at,
        revision=revision,
        components=components,
        outcome_ids=(OutcomeId(f"{turn.inference_id}-accepted"),),
        why=", ".join(f"{name} {value:+.2f}" for name, value in components.items()),
    )
