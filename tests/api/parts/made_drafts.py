"""Drafts of eval cases as `onward suite mine` makes them."""

import msgspec

from core.ids import InferenceId, Namespace, SessionId
from core.operations.drafts import Draft, DraftCase

CASE = DraftCase(
    name="sum",
    kind="answer",
    group="write",
    messages=({"role": "user", "content": "Write total(xs): the sum of a list."},),
    instruction="Write total(xs): the sum of a list.",
    answer="def total(xs):\n    return sum(xs)",
    checker='{"kind": "contains", "all": ["total"]}',
    tests="python -m pytest -q tests/test_total.py",
    dockerfile="FROM shop@sha256:0a",
)


def draft(draft_id: str, namespace: str = "default") -> Draft:
    return Draft(
        draft_id=draft_id,
        session_id=SessionId("session-00002"),
        inference_id=InferenceId("i"),
        namespace=Namespace(namespace),
        workload="write",
        repository={"repository": "shop", "commit": "c0ffee"},
        why="accepted True",
        case=msgspec.structs.replace(CASE, name=f"sum {draft_id}"),
    )
