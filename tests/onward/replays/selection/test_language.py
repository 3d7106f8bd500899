"""Turns are chosen by what stands in `--where`, and what cannot be asked is refused by name."""

import re
from pathlib import Path

import pytest
from told_past import said_of, turn

from core.errors import ConfigError
from core.events import Completion, Reward, VersionSpan
from core.ids import Namespace, PolicyRef, base_ref
from onward.replays.selection.fields import FIELDS
from onward.replays.selection.known import KnownTurn
from onward.replays.selection.language import parse

ROOT = Path(__file__).resolve().parents[4]


def reward_of(turn: Completion, value: float, *, void: bool = False) -> Reward:
    return Reward(
        inference_id=turn.inference_id,
        session_id=turn.session_id,
        namespace=turn.namespace,
        workload=turn.workload,
        revision=0,
        value=value,
        components={},
        outcome_ids=(),
        first_outcome_at=None,
        last_outcome_at=None,
        why="",
        spec="",
        final=True,
        decided_at=turn.received_at,
        void=void,
    )


def a_turn() -> KnownTurn:
    spoken = (
        VersionSpan(start=0, end=2, version=base_ref(12)),
        VersionSpan(start=2, end=4, version=base_ref(13)),
    )
    made = turn(3, "write it", "def it", tags={"team": "web search", "tier": "1"}, policy_versions=spoken, client="zed")
    outcomes = (
        said_of(made, "accepted"),
        said_of(made, "kept", 0.5),
        said_of(made, "comment", "too long"),
        said_of(made, "note", "5"),
    )
    return KnownTurn(made, reward_of(made, 0.75), outcomes)


@pytest.mark.parametrize(
    ("text", "admits"),
    [
        ("workload = write", True),
        ("workload = chat", False),
        ("workload != chat and namespace=default", True),
        ("workload in (chat, write)", True),
        ("workload in (chat)", False),
        ("user = user-3", True),
        ("experiment = e1", False),
        ("experiment != e1", True),  # there is none
        ("reward > 0.5", True),
        ("reward > 0.75", False),
        ("reward >= 0.75 and reward <= .75", True),
        ("version = 13", True),
        ("version != 13", False),
        ("version < 13", True),  # a part of it
        ("version > 13", False),
        ("version >= acme@1", False),  # another policy's
        ("time >= 2026-11-16T09:03:00Z and time < 2026-11-16T10:04:00+01:00", True),
        ("time > 2026-11-16T09:03:00Z", False),
        ("tag = team", True),
        ("tag != tier", False),
        ("tag.team = 'web search'", True),
        ('tag.team in (ads, "web search")', True),
        ("tag.nobody = x", False),
        ("outcome = accepted", True),
        ("outcome != rejected", True),
        ("outcome.accepted = true", True),
        ("outcome.accepted = 'true'", False),  # in quotes it is text
        ("outcome.kept = 0.5", True),
        ("outcome.kept = '0.5'", False),
        ("outcome.note = 5", False),
        ('outcome.note in (x, "5")', True),
        ('outcome.note != "5"', False),
        ("outcome.accepted = 1", False),  # true is no number
        ("outcome.kept > 0.4", True),
        ("outcome.comment > 0.4", False),  # text is not more than a number
        ("outcome.comment = 'too long'", True),
        ("trainable = true", True),
        ("trainable != true", False),
        ("tokens > 2", True),
        ("client = 'and' and client = zed", False),
    ],
)
def test_it_says_which_turns(text: str, admits: bool) -> None:
    assert parse([text]).admits(a_turn()) is admits


def test_without_it_all_are_chosen_and_of_several_all_must_hold() -> None:
    known = a_turn()
    assert parse([]).admits(known)
    assert parse(["workload = write", "reward > 0"]).admits(known)
    assert not parse(["workload = write", "reward < 0"]).admits(known)


def test_what_is_not_there_is_neither_more_nor_less() -> None:
    made = turn(1, "a", "b")
    for unknown in (KnownTurn(made, None, ()), KnownTurn(made, reward_of(made, 0.0, void=True), ())):
        assert not parse(["reward <= 0"]).admits(unknown)
        assert not parse(["reward > 0"]).admits(unknown)


def test_versions_of_a_namespaces_policy_are_compared_among_themselves() -> None:
    spoken = (VersionSpan(start=0, end=1, version=PolicyRef.parse("acme@4")),)
    known = KnownTurn(turn(1, "a", "b", policy_versions=spoken, namespace=Namespace("acme")), None, ())
    assert parse(["version >= acme@3"]).admits(known)
    assert not parse(["version >= 3"]).admits(known)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("workfload = chat", r"there is no field 'workfload': is workload meant\? there are namespace, workload"),
        ("tag. = x", "there is no field 'tag.'"),
        ("outcome.NAME.x", "want one of = != in"),
        ("workload.x = y", "there is no field 'workload.x'"),
        ("workload like chat", "workload like: want one of = != in"),
        ("workload ~ chat", "workload ~: want one of"),
        ("workload > chat", "workload >: text is not more or less"),
        ("outcome.accepted > true", "outcome.accepted >: true or false, or text is not more or less"),
        ("reward > much", "reward is a number, not 'much'"),
        ("reward > nan", "reward is a number, not 'nan'"),
        ("trainable = yes", "trainable is true or false, not 'yes'"),
        ("version = v12", "version is a version, as 12 or acme@12, not 'v12'"),
        ("time > monday", "--where: time monday: want a time as"),
        ("time > 2026-11-16T09:00:00", "a timezone is missing: write 2026-11-16T09:00:00Z"),
        ("", "want a field at its end"),
        ("workload", "want one of = != in .* at its end"),
        ("workload =", "want a value at its end"),
        ("workload = a or workload = b", "want `and` before 'or workload = b'"),
        ("workload in chat", r"want `\(` before 'chat'"),
        ("workload in (chat write)", r"want `,` or `\)` before 'write\)'"),
        ("workload in (chat", r"want `,` or `\)` at its end"),
        ("workload = 'chat", 'cannot read "\'chat"'),
        ("'workload' = chat", "want a field before"),
    ],
)
def test_what_it_cannot_read_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse([text])


def test_every_field_is_documented_and_no_other() -> None:
    table = (ROOT / "docs" / "research.md").read_text().split("| field |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    assert [(name, kind, meaning) for name, kind, meaning in rows] == [
        (name, field.kind.name, field.meaning) for name, field in FIELDS.items()
    ]
