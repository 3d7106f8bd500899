"""The requests in docs/rewards.md are valid."""

import re
from pathlib import Path
from typing import Any

import pytest

from api.feedback.body import FeedbackBody, feedback_decoder
from api.feedback.measures import check_measured
from api.feedback.values import check_level, check_value
from core.reward_spec import RewardSpec, load_reward_spec

ROOT = Path(__file__).resolve().parents[3]
BODIES = re.findall(r"`SAY '(\{.*?\})'`", (ROOT / "docs" / "rewards.md").read_text())


@pytest.fixture(scope="module")
def spec() -> RewardSpec:
    return load_reward_spec(ROOT / "onward" / "rewards.toml")


def test_there_is_one_for_each_kind() -> None:
    assert len(BODIES) >= 12


@pytest.mark.parametrize("text", BODIES)
def test_it_would_be_taken(text: str, spec: RewardSpec) -> None:
    body: FeedbackBody = feedback_decoder.decode(text)
    check_level(spec, body.metric_name, of_session=body.inference_id is None)
    texts: dict[str, Any] = {name: getattr(body, name) for name in ("final_text", "diff", "snapshot")}
    given = {name: said for name, said in texts.items() if said is not None}
    for name, said in given.items():
        check_measured(spec, body.metric_name, name, said)
    if not given:
        assert isinstance(body.value, bool | float | int | str)
        check_value(spec, body.metric_name, body.value)
