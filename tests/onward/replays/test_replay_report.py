"""A replay's report, as text and as a picture."""

import json
from pathlib import Path
from typing import Any

import made_events
import msgspec
import pytest
from matplotlib.figure import Figure

from core.events import TextEdit
from core.ids import UserHash
from onward.replays.report import _digest, draw, strata, summary

GAINS = {
    "snips": {"value": 0.1, "low": -0.05, "high": 0.25},
    "stated": {"value": 0.2, "low": 0.1, "high": 0.3},
}
REPORT: dict[str, Any] = {
    "missing": 0,
    "rewards": 2,
    "rewards_digest": "r",
    "version": 3,
    "weights_digest": "w",
    "weights": "blobs/3",
    "left_out": {},
    "held_out": {"turns": 9, "refused": None, "gains": GAINS},
    "updates": [{"version": 2, "reward": 0.1, "kl": 0.0}, {"version": 3, "reward": 0.2, "kl": 0.1}],
    "learner": {},
}


def test_turns_are_told_apart_by_what_their_reward_was_made_of() -> None:
    rewards = [
        made_events.reward("1", value=0.0, components={"thumb": 1.0}),
        made_events.reward("2", value=0.5, components={"tests": 1.0, "accepted": 1.0}),
        made_events.reward("1", value=1.0, revision=1, components={"thumb": 1.0}),
        made_events.reward("3", value=-1.0, components={"thumb": 1.0}),
        made_events.reward("4", value=0.25, components={}),
        made_events.reward("5", value=0.75, components={}),
        msgspec.structs.replace(made_events.reward("5", value=0.0, revision=1, components={}), void=True),
    ]
    where = f"{rewards[0].namespace}|{rewards[0].workload}"
    assert strata(rewards) == {
        f"{where}|accepted+tests": {"turns": 1, "reward": 0.5},
        f"{where}|default": {"turns": 1, "reward": 0.25},
        f"{where}|thumb": {"turns": 2, "reward": 0.0},
    }


def test_the_digest_of_rewards_is_that_of_builds_that_knew_less() -> None:
    rewards = [
        made_events.reward("1", value=0.5, components={"thumb": 1.0}),
        made_events.reward("1", value=1.0, revision=1, components={}),
    ]
    assert _digest(rewards) == "4bab95fade965801df20749fface6d91"
    edit = TextEdit(start=0, end=1, token_ids=(7,))
    for more in ({"void": True}, {"edited_by": UserHash("ada")}, {"edits": (edit,)}):
        assert _digest([rewards[0], msgspec.structs.replace(rewards[1], **more)]) != _digest(rewards)


def test_the_summary_has_what_users_held_out_say() -> None:
    assert summary(REPORT)["held_out"] == REPORT["held_out"]
    assert "updates" not in summary(REPORT)


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        (None, []),
        (REPORT["held_out"], ["snips", "stated"]),
        ({"turns": 0, "refused": "no turn that could be learned from", "gains": {}}, ["no turn that could"]),
    ],
    ids=["none", "gains", "refused"],
)
def test_the_picture_shows_gains_or_why_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: dict[str, Any] | None, shown: list[str]
) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    origin = {"command": "onward replay", "commit": "c"}
    draw(REPORT | {"held_out": held, "provenance": origin}, tmp_path / "report.png")
    assert json.dumps(origin).encode() in (tmp_path / "report.png").read_bytes(), "the picture says where it is from"
    (figure,) = drawn
    *curves, last = figure.axes
    assert [axis.get_title() for axis in (*curves, last)][:2] == ["mean reward of the batch", "KL to the anchor (k3)"]
    assert len(figure.axes) == (4 if held is None else 5)
    if held is not None:
        assert last.get_title() == "gain on users held out, 95 %"
        told = [*(label.get_text() for label in last.get_xticklabels()), *(text.get_text() for text in last.texts)]
        assert all(any(word in text for text in told) for word in shown), told
    assert (tmp_path / "report.png").stat().st_size > 1000
