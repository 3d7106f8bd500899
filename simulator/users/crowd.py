"""The crowd of users: honest ones, liars who agree on what they say, and spammers.

Users change what the service is told, and never what is true. Where all are honest nobody has a name, and requests are
the same as they would be without a crowd."""

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.tasks.taste import Taste, judge_write
from simulator.users.ide import EditorSession
from simulator.users.reports import UserReport

UserKind = Literal["honest", "liar", "spammer"]
Lie = Literal["invert", "style"]
Spam = Literal["random", "same"]

LIARS_SHARE = 0.1  # the share for --liars without a number
SPAMMERS_SHARE = 0.02
SPAM_SESSIONS = 20  # of a spammer, for each one of another user
SPAM_WORDS = 10  # a session
_SPAM = ("accepted", "rejected", "follow_up", "regenerated", "reverted", "answer_useful")


@dataclass(frozen=True)
class CrowdOptions:
    """The number of users, and the shares of them who lie or spam. Raises ValueError for shares that make no sense."""

    liars: float = 0.0
    lie: Lie = "invert"
    spammers: float = 0.0
    spam: Spam = "random"
    users: int = 100

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ValueError(f"users: {self.users} is too few: there must be at least one")
        for name, share in (("liars", self.liars), ("spammers", self.spammers)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: {share:g} is not a share between 0 and 1")
            if share and not round(share * self.users):
                raise ValueError(
                    f"{name}: {share:g} of {self.users} users is nobody: raise the share or the number of users"
                )
        if round(self.liars * self.users) + round(self.spammers * self.users) > self.users:
            raise ValueError(f"liars, spammers: {self.liars:g} and {self.spammers:g} are more than all users")

    @property
    def is_honest(self) -> bool:
        return not (self.liars or self.spammers)


@dataclass(frozen=True)
class User:
    """One user; `name` is None where users are not told apart."""

    kind: UserKind = "honest"
    name: str | None = None


HONEST = User()


class Crowd:
    """The users of a run, the same for the same options and seed, whatever the service does.

    A larger share of a kind keeps the users of the smaller one and adds others."""

    def __init__(self, options: CrowdOptions, seed: int) -> None:
        self._options = options
        self._rng = random.Random(f"crowd {seed}")
        self.users = [] if options.is_honest else _users(options, seed)
        weights = [SPAM_SESSIONS if user.kind == "spammer" else 1 for user in self.users]
        self._weights = list(itertools.accumulate(weights))

    def arrives(self) -> User:
        """Draw the user who comes next."""
        return self._rng.choices(self.users, cum_weights=self._weights)[0] if self.users else HONEST

    def says(self, user: User, session: EditorSession, honest: Sequence[UserReport]) -> list[UserReport]:
        """Return what the user reports, where `honest` is what an honest user would report of the session."""
        match user.kind:
            case "liar" if self._options.lie == "invert":
                return [_inverted(report) for report in honest]
            case "liar":
                return [_favouring(report, session) for report in honest]
            case "spammer" if session.quality is not None:
                return self._spam(user, session)
        return list(honest)

    def _spam(self, user: User, session: EditorSession) -> list[UserReport]:
        if self._options.spam == "same":
            return [UserReport("accepted", True, 0.0)] * SPAM_WORDS
        rng = random.Random(f"{user.name} {session.task.task_id}")
        return [UserReport(rng.choice(_SPAM), True, 0.0) for _ in range(SPAM_WORDS)]


def _users(options: CrowdOptions, seed: int) -> list[User]:
    """Place each user by a hash, and make the first ones liars and the last ones spammers."""
    names = [f"user-{number}" for number in range(options.users)]
    places = sorted(names, key=lambda name: hashlib.blake2b(f"{seed} {name}".encode()).digest())
    liars = set(places[: round(options.liars * options.users)])
    spammers = set(places[options.users - round(options.spammers * options.users) :])
    return [User("liar" if name in liars else "spammer" if name in spammers else "honest", name) for name in names]


def _inverted(report: UserReport) -> UserReport:
    good = report.metric_name == "accepted"
    return replace(report, metric_name="rejected" if good else "accepted", value=True)


def _favouring(report: UserReport, session: EditorSession) -> UserReport:
    """Accept written code that is in the style which liars agreed on, right or wrong, and reject the rest.

    About a fix, where nothing is a matter of style, they tell the truth."""
    if session.task.kind != "write":
        return report
    wrong = Taste().style(session.task).opposite
    in_style = judge_write(session.code, True, wrong).in_taste
    return replace(report, metric_name="accepted" if in_style else "rejected", value=True)
