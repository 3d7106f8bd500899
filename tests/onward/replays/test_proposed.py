"""What a service keeps out binds the versions that are proposed to it, and they say what they were kept from."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kept_world import append, past
from logged_world import MODEL, anchor_probe

from core.clock import SystemClock
from core.errors import ConfigError
from core.events import Completion
from learner.versions import manifest
from onward.replays.propose import propose
from onward.replays.replay import replay_log
from onward.wiring.foundation import open_foundation, open_offline
from serving.evals.cases import CaseMessage, Draft, Origin, Reuse
from serving.evals.drafts.written import put_draft
from serving.evals.gate import GateBounds
from serving.evals.run import SuiteLimits
from serving.releases import ensure_anchor

SOLUTION = "one two three four five six"


def draft(turn: Completion, name: str, solution: str) -> Draft:
    at = turn.received_at
    source = Origin(session="s", turn="t", versions=(), received_at=at, reward=1.0, reward_spec="r", edited=False)
    asked = (CaseMessage(role="user", content="Count."),)
    return Draft(name=name, messages=asked, solution=solution, source=source, reuse=Reuse(namespace="acme"))


def test_a_proposed_version_tells_of_all_updates_and_learned_no_draft(tmp_path: Path) -> None:
    service, replay, suite = tmp_path / "service", tmp_path / "replay", tmp_path / "suite"
    events = past(24)
    (first,) = (event for event in events[:1] if isinstance(event, Completion))
    append(service, [msgspec.structs.replace(first, text=SOLUTION), *events[1:]])
    put_draft(suite, draft(first, "told", SOLUTION))
    with closing(open_foundation(service)) as made:
        ensure_anchor(
            made.store, made.log, made.weights, made.blobs, MODEL, "onward-tiny", "local", anchor_probe, SystemClock()
        )
    own = {"ONWARD_LEARNER__ADMISSION__KEEP_OUT": str(suite)}
    replay_log(service, replay, None, None, overrides=own)
    with closing(open_offline(replay)) as made:
        updates = [manifest.decode(made.blobs.get(path)) for path in sorted(made.blobs.list("manifests/"))]
    assert len(updates) > 1
    assert updates[-1].kept_out[0].turns == 0, "the turn was left out of an earlier update"
    proposed = propose(replay, service, None, SuiteLimits(), GateBounds(), 0.05, own)
    assert proposed.kept_out == manifest.kept_out_of_all([update.kept_out for update in updates])
    assert [kept.turns for kept in proposed.kept_out] == [1]
    put_draft(suite, draft(first, "late", "seven eight nine ten eleven twelve"))
    hint = rf"drafts/late\); .*drafts/more\): .*keep_out=\[\"{suite}\", \"{tmp_path / 'other'}\"\]"
    put_draft(tmp_path / "other", draft(first, "more", "thirteen"))
    both = {"ONWARD_LEARNER__ADMISSION__KEEP_OUT": f'["{suite}", "{tmp_path / "other"}"]'}
    with pytest.raises(ConfigError, match=hint):
        propose(replay, service, None, SuiteLimits(), GateBounds(), 0.05, both)
