"""What an order to erase takes from what is known of a user beside turns, on each database."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from made_events import NOW

from core.ids import Namespace, SessionId, UserHash
from core.operations.consents import Consent, ConsentKind
from core.operations.erasures import ErasedKind, Erasure
from core.operations.exclusions import Selection
from core.operations.quotas import Account, Use
from core.ports import Store
from core.store.work import Work

ACME = Namespace("acme")
WHY = "by mail on 3 May"


def order(kind: ErasedKind, subject: str, *sessions: str) -> Erasure:
    return Erasure(
        erasure_id=1,
        namespace=ACME,
        kind=kind,
        subject=subject,
        why="a test",
        by="ada",
        ordered_at=NOW,
        deadline_at=NOW,
        sessions=tuple(map(SessionId, sessions)),
    )


def told(work: Work, kind: ConsentKind, subject: str, namespace: str = ACME, age_s: float = 60.0) -> None:
    """Store a word of consent, and the order to exclude that stands for it."""
    at, of = NOW - timedelta(seconds=age_s), Namespace(namespace)
    number = work.exclusions.give(Selection(namespace=of, users=(UserHash(subject),)), WHY, "plugin", at)
    work.exclusions.lift(number, WHY, "plugin", at)
    work.consents.hold()
    said = Consent(
        namespace=of, kind=kind, subject=subject, learn=False, store=True, purposes=("support",), why=WHY, by="plugin",
        at=at, exclusion_id=number,
    )  # fmt: skip
    work.consents.add(said)


@pytest.fixture
def kept(store: Store) -> Callable[[], tuple[list[str], list[str]]]:
    """Put words and spending of some there; return what tells whose reasons and whose spending are left."""
    accounts = [Account("namespace", "acme", "acme"), Account("key", "acme", "plugin")]
    users = [Account("user", "acme", "eve"), Account("user", "acme", "ada"), Account("user", "other", "ada")]
    with store.work() as work:
        for kind, subject in (("user", "ada"), ("session", "talk"), ("user", "eve"), ("session", "ada")):
            told(work, kind, subject)  # type: ignore[arg-type]
        told(work, "user", "ada", "other")
        told(work, "user", "ada", age_s=0.0)  # the word that came with the order
        for month in ("2026-10", "2026-11"):
            work.spending.add(month, dict.fromkeys((*accounts, *users), Use(1, 1)))

    def left() -> tuple[list[str], list[str]]:
        with store.look() as view:
            words = view.consents.after(0, 100)
            orders = {each.exclusion_id: each for each in view.exclusions.in_order()}
            used = [view.spending.of_namespace("2026-11", name, 9) for name in ("acme", "other")]
        for word in words:
            assert word.exclusion_id is not None
            excluded = orders[word.exclusion_id]
            assert excluded.why == excluded.lifted_why == (word.why or "erased")
            assert (word.learn, word.purposes, word.by) == (False, ("support",), "plugin"), "what was allowed stays"
        reasons = [f"{word.namespace} {word.kind} {word.subject}" for word in words if word.why]
        return reasons, sorted(f"{each.namespace} {each.kind} {each.name}" for part in used for each in part)

    return left


NAMED = ["acme key plugin", "acme namespace acme"]


@pytest.mark.parametrize(
    ("given", "counts", "reasons", "spent"),
    [
        (
            order("user", "ada", "talk"),
            {"consents": 2, "spending": 2},
            ["acme user eve", "acme session ada", "other user ada", "acme user ada"],
            [*NAMED, "acme user eve", "other user ada"],
        ),
        (
            order("session", "talk", "talk"),
            {"consents": 1},
            ["acme user ada", "acme user eve", "acme session ada", "other user ada", "acme user ada"],
            [*NAMED, "acme user ada", "acme user eve", "other user ada"],
        ),
        (
            order("namespace", "acme", "talk"),
            {"consents": 4, "spending": 4},
            ["other user ada", "acme user ada"],
            [*NAMED, "other user ada"],
        ),
    ],
    ids=["user", "session", "namespace"],
)
def test_reasons_and_spending_go_and_what_was_allowed_stays(
    store: Store,
    kept: Callable[[], tuple[list[str], list[str]]],
    given: Erasure,
    counts: dict[str, int],
    reasons: list[str],
    spent: list[str],
) -> None:
    with store.work() as work:
        assert work.sweeps.redact_subject(given) == counts
    assert kept() == (reasons, spent)
    with store.work() as work:
        again = work.sweeps.redact_subject(given)
    assert again == {"consents": counts["consents"]}, "what is done once more finds no less"


def test_reasons_that_earlier_builds_copied_into_orders_to_erase_go_with_those_of_the_words(store: Store) -> None:
    copied = f"consent of a user: {WHY}"
    orders = [
        (ACME, "user", "ada", copied, -60.0),
        (ACME, "session", "talk", f"consent of a session: {WHY}", -60.0),
        (ACME, "user", "ada", "she asked: by mail", -50.0),  # an operator's own
        (ACME, "user", "eve", copied, -60.0),
        ("other", "user", "ada", copied, -60.0),
        (ACME, "user", "ada", copied, 60.0),
    ]
    with store.work() as work:
        for namespace, kind, subject, why, later_s in orders:
            at = NOW + timedelta(seconds=later_s)
            given = msgspec.structs.replace(
                order("user", subject), namespace=Namespace(namespace), kind=kind, why=why, ordered_at=at
            )
            work.erasures.end(work.erasures.give(given), at, "{}")
        work.sweeps.redact_subject(order("user", "ada", "talk"))
        left = [each.why for each in reversed(work.erasures.newest(None, 9))]
    assert left == ["consent of a user", "consent of a session", "she asked: by mail", copied, copied, copied]
