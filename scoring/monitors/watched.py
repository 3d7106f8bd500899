"""A turn as monitors see it."""

from collections.abc import Mapping, Sequence
from sys import intern

import msgspec

from core.events import Arm, Completion, Environment, Outcome, Purpose, Reward
from core.ids import InferenceId, Namespace, PolicyRef, SessionId
from core.reward_spec import DerivedSpec, Role, call_line
from core.text.patterns import pattern
from scoring.monitors.form import form_of
from scoring.rewards.facts import has_malformed_call

_REFUSES = pattern(
    r"\b(i (can(no|')t|am (unable|not able)|won'?t) (help|assist|do|comply|provide|continue)|as an ai\b)"
)
_ASKS = pattern(r"^\w*(ask|clarif|question)\w*$")
_RUN = 4  # tokens that make a repetition when they come again


class WatchedTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn.

    `unit`: the user, or the session when there is none. `value`: of the last reward, None before there is one; `told`:
    what clients, users and the environment said of the turn, `judged` what a judge said, by name, as numbers; `roles`:
    the spec's role of each outcome in `told`, by name. `by_default`: the reward is made of no outcome."""

    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    unit: str
    workload: str
    purpose: Purpose
    version: PolicyRef | None  # of the first token
    arm: Arm
    environment: Environment
    at_s: float  # UTC, seconds since 1970
    tokens: int
    seconds: float
    calls: int
    offered: bool  # tools, so that calls and edits were possible
    edits: bool
    tests: bool
    searches: bool
    malformed: bool
    asks: bool
    silent: bool
    refuses: bool
    repetition: float  # share of its tokens that repeat earlier ones, in runs
    surprisal: float | None  # mean negative log-probability of its tokens, nats: an estimate of entropy
    value: float | None = None
    components: dict[str, float] = {}
    told: dict[str, float] = {}
    judged: dict[str, float] = {}
    roles: dict[str, Role] = {}
    by_default: bool = False
    form: tuple[str, ...] = ()  # of what is new in it, see `scoring.monitors.form`


def watch(turn: Completion, patterns: DerivedSpec) -> WatchedTurn:
    """Make a turn that has no feedback yet."""
    names = [call.name for call in turn.tool_calls]
    lines = [call_line(call.name, call.arguments) for call in turn.tool_calls]
    silent = not turn.text.strip() and not turn.tool_calls
    return WatchedTurn(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        unit=turn.user_id or turn.session_id,
        workload=turn.workload,
        purpose=turn.purpose,
        version=turn.policy_versions[0].version if turn.policy_versions else None,
        arm=turn.arm,
        environment=turn.environment,
        at_s=turn.received_at.timestamp(),
        tokens=len(turn.token_ids),
        seconds=turn.latency_ms / 1000,
        calls=len(turn.tool_calls),
        offered=bool(turn.tools),
        edits=_any(patterns.edits, lines),
        tests=_any(patterns.tests, lines),
        searches=_any(patterns.searches, lines),
        malformed=has_malformed_call(turn),
        asks=any(map(_ASKS.is_in, names)) or (turn.text.rstrip().endswith("?") and not turn.tool_calls),
        silent=silent,
        refuses=_REFUSES.is_in(turn.text),
        repetition=repetition(turn.token_ids),
        surprisal=-sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None,
        form=tuple(map(intern, form_of(turn))),
    )


def with_reward(turn: WatchedTurn, reward: Reward) -> WatchedTurn:
    """Return the turn with the reward's last revision; a void one takes away what the turn had."""
    if reward.void:
        return msgspec.structs.replace(turn, value=None, components={}, by_default=False)
    by_default = not reward.outcome_ids
    return msgspec.structs.replace(turn, value=reward.value, components=dict(reward.components), by_default=by_default)


def hear(turn: WatchedTurn, outcome: Outcome, roles: Mapping[str, Role]) -> WatchedTurn:
    """Return the turn with an outcome: the last one of a name counts, and a withdrawal removes it.

    The scorer's conclusions are not in the log."""
    kind = "judged" if outcome.source == "judge" else "told"
    heard: dict[str, float] = {name: value for name, value in getattr(turn, kind).items() if name != outcome.name}
    if not outcome.withdrawn:
        heard[outcome.name] = float(outcome.value) if isinstance(outcome.value, bool | int | float) else 1.0
    return with_roles(msgspec.structs.replace(turn, **{kind: heard}), roles)


def with_roles(turn: WatchedTurn, roles: Mapping[str, Role]) -> WatchedTurn:
    """Return the turn with the roles of the current spec, which may be another than when the turn was kept."""
    return msgspec.structs.replace(turn, roles={name: roles[name] for name in turn.told if name in roles})


def repetition(token_ids: Sequence[int]) -> float:
    """Return the share of runs of four tokens that occurred before; 0 for an answer too short to have any."""
    runs = len(token_ids) - _RUN + 1
    return 1 - len(set(zip(*(token_ids[first:] for first in range(_RUN)), strict=False))) / runs if runs > 0 else 0.0


def _any(searched: str, lines: Sequence[str]) -> bool:
    return any(map(pattern(searched).is_in, lines))
