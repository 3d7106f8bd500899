"""Tasks: what a version did in one session, whether that was good, and what it cost."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from core.events import Reward
from core.ids import PolicyRef
from core.records.call_times import call_times, critical_path_seconds
from core.reward_spec import DerivedSpec, RewardSpec, call_line
from core.settings import PriceSettings
from core.store.newest.curves import TaskDeed
from core.text.patterns import Pattern, pattern


class SessionTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One session. `passed` is None where nothing checked it; `cost` is None where tokens have no price.

    `tokens` count once, where they first stand; `seconds` are those of its requests, which follow one another, and of
    the critical path of its tools where their times are told."""

    version: PolicyRef
    harness: str | None
    passed: bool | None
    good: bool
    kept_edits: int
    searches: int
    tests: int
    lint_fixes: int
    calls: int
    parallel_calls: int
    tokens: int
    seconds: float
    cost: float | None


class Reader:
    """Makes tasks of turns, by the patterns of the reward spec and the prices of the settings."""

    def __init__(self, spec: RewardSpec, prices: PriceSettings) -> None:
        self._prices = prices
        self._checks = {name for name, outcome in spec.outcomes.items() if outcome.role == "check"}
        self._keeps = {
            name
            for name, outcome in spec.outcomes.items()
            if outcome.role in ("accept", "edit") or outcome.measure in ("kept", "survived")
        }
        self._kinds = _kinds(spec.derived)

    def tasks(self, found: Iterable[tuple[TaskDeed, Reward]]) -> list[SessionTask]:
        """Return a task for each session; turns without tokens were not stored, and are left out."""
        by_session: dict[str, list[tuple[TaskDeed, Reward]]] = defaultdict(list)
        for deed, reward in found:
            if deed.policy_versions and deed.token_ids:
                by_session[deed.session_id].append((deed, reward))
        return [self._task(sorted(each, key=lambda one: one[0].turn_index)) for each in by_session.values()]

    def _task(self, turns: Sequence[tuple[TaskDeed, Reward]]) -> SessionTask:
        deeds, rewards = [deed for deed, _ in turns], [reward for _, reward in turns]
        did = [self._did(deed) for deed in deeds]
        prompt, output = _tokens(deeds)
        sizes = [len(deed.tool_calls) for deed in deeds]
        last = deeds[-1]
        return SessionTask(
            version=last.policy_versions[-1].version,
            harness=last.harness_version,
            passed=_last_said(rewards, self._checks),
            good=sum(reward.value for reward in rewards) > 0,
            kept_edits=sum(
                "edits" in kinds and any(reward.components.get(name, 0.0) > 0 for name in self._keeps)
                for kinds, reward in zip(did, rewards, strict=True)
            ),
            searches=sum("searches" in kinds for kinds in did),
            tests=sum("tests" in kinds for kinds in did),
            lint_fixes=sum("lints" in before and "edits" in after for before, after in pairwise(did)),
            calls=sum(sizes),
            parallel_calls=sum(size for size in sizes if size > 1),
            tokens=prompt + output,
            seconds=sum(deed.latency_ms for deed in deeds) / 1000 + _tool_seconds(deeds),
            cost=self._prices.cost(prompt, output),
        )

    def _did(self, deed: TaskDeed) -> set[str]:
        lines = [call_line(call.name, call.arguments) for call in deed.tool_calls]
        return {name for name, kind in self._kinds.items() if any(map(kind.is_in, lines))}


def _kinds(spec: DerivedSpec) -> Mapping[str, Pattern]:
    kinds = {"searches": spec.searches, "edits": spec.edits, "tests": spec.tests, "lints": spec.lints}
    return {name: pattern(searched) for name, searched in kinds.items()}


def _last_said(rewards: Sequence[Reward], names: Collection[str]) -> bool | None:
    """Return whether the last of the outcomes that was told was good."""
    for reward in reversed(rewards):
        told = [value for name, value in reward.components.items() if name in names]
        if told:
            return min(told) > 0
    return None


def _tokens(deeds: Sequence[TaskDeed]) -> tuple[int, int]:
    """Return (tokens of prompts that were new there, sampled tokens)."""
    new, known = 0, 0
    for deed in deeds:
        length = len(deed.prompt_token_ids)
        new += length - known if length >= known else length  # a context that begins anew counts whole
        known = length + len(deed.token_ids)
    return new, sum(len(deed.token_ids) for deed in deeds)


def _tool_seconds(deeds: Sequence[TaskDeed]) -> float:
    told: list[dict[str, Any]] = [msgspec.to_builtins(each) for deed in deeds for each in deed.messages]
    return critical_path_seconds(call_times(told))
