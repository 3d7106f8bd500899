"""`onward suite mine`: drafts of eval cases, from the sessions of a service whose users let it learn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

from core.events import Completion, Outcome
from core.ids import InferenceId
from core.operations.drafts import Draft
from core.ports import Store
from core.reward_spec import RewardSpec
from onward.replays.history import period, require_directory
from onward.wiring.foundation import open_foundation
from serving.evals.mining.folder import SuiteFolder
from serving.evals.mining.mine import mined


def mine(
    directory: Path,
    suite: Path,
    begin: str | None,
    end: str | None,
    workload: str | None,
    overrides: Mapping[str, str],
) -> dict[str, int]:
    """Put drafts into the suite's folder; return how many sessions were looked at, and how many drafts are new.

    `begin` and `end` bound the time of a session's first turn. Raises ConfigError naming the option at fault."""
    require_directory(directory, overrides)
    times = period(begin, end)
    counts = Counter[str](sessions=0, drafts=0)
    with closing(open_foundation(directory, overrides)) as foundation:
        drafts = _drafts(foundation.store, foundation.spec, times, workload, counts)
        counts["new"] = SuiteFolder(suite).add(drafts)
    return dict(counts)


def _drafts(
    store: Store,
    spec: RewardSpec,
    times: tuple[datetime | None, datetime | None],
    workload: str | None,
    counts: Counter[str],
) -> Iterator[Draft]:
    begin, end = times
    with store.look() as view, store.look() as inner:
        for namespace, session_id in view.turns.sessions():
            turns: list[Completion] = inner.turns.of_session(namespace, session_id)
            first = turns[0].received_at
            if (begin is not None and first < begin) or (end is not None and first >= end):
                continue
            if workload is not None and workload not in {turn.workload for turn in turns}:
                continue
            counts["sessions"] += 1
            ids: list[InferenceId] = [turn.inference_id for turn in turns]
            outcomes: list[Outcome] = [
                *inner.outcomes.of_turns(ids),
                *inner.outcomes.of_session(namespace, session_id),
            ]
            derived = spec.rules(turns[-1].workload, namespace).derived
            draft = mined(turns, outcomes, spec.roles, derived)
            if draft is not None:
                counts["drafts"] += 1
                yield draft
