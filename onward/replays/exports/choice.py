"""Which turns an export or a replay is of: the same words for both."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from core.errors import ConfigError
from core.events import Completion
from core.ids import BASE, InferenceId, Namespace, SessionId
from core.ports import Store
from onward.replays.exports.outcomes import Asked, are_said, asked_of, outcomes_of
from onward.replays.history import period

_AT_ONCE = 500  # turns of one query
_KINDS = ("namespace", "workload", "version", "tag", "outcome")


@dataclass(frozen=True)
class TurnChoice:
    """The chosen turns: those logged from `begin` to before `end`, and so on; what is None chooses nothing.

    What was said of a turn, and its reward, count whenever they came."""

    begin: datetime | None = None
    end: datetime | None = None
    namespace: Namespace | None = None
    workload: str | None = None
    versions: tuple[int, int] | None = None
    """The lowest and the highest version of the base policy; all of a turn was sampled from one of these."""
    tags: Mapping[str, str] = field(default_factory=dict)
    outcomes: Sequence[Asked] = ()
    """All of these stand of a turn, or of its session as a whole."""
    told: Mapping[str, str] = field(default_factory=dict)
    """The options as they were given, or with what each `--where` is of and says."""

    @property
    def is_of_all(self) -> bool:
        """Whether every turn is chosen, as far as time chooses it."""
        return self.is_told_by_rewards and self.namespace is None and self.workload is None

    @property
    def is_told_by_rewards(self) -> bool:
        """Whether a reward alone says if its turn is among the chosen, as far as time does not."""
        return self.versions is None and not self.tags and not self.outcomes

    def wants(self, turn: Completion) -> bool:
        """Return whether a turn is chosen, as far as `outcomes` leave it open."""
        is_here = self.namespace in (None, turn.namespace) and self.workload in (None, turn.workload)
        return is_here and self._wants_versions(turn) and self.tags.items() <= turn.tags.items()

    def _wants_versions(self, turn: Completion) -> bool:
        if self.versions is None:
            return True
        first, last = self.versions
        refs = [span.version for span in turn.policy_versions]
        return bool(refs) and all(ref.policy == BASE and first <= ref.version <= last for ref in refs)


def choice_of(
    begin: str | None,
    end: str | None,
    namespace: str | None,
    workload: str | None = None,
    version: str | None = None,
    tags: Sequence[str] = (),
    outcomes: Sequence[str] = (),
) -> TurnChoice:
    """Read the options. Raises ConfigError naming the one at fault."""
    times = period(begin, end)
    given = {"--from": begin, "--to": end, "--namespace": namespace, "--workload": workload, "--version": version}
    told = {option: value for option, value in given.items() if value is not None}
    return TurnChoice(
        *times,
        namespace=None if namespace is None else Namespace(namespace),
        workload=workload,
        versions=None if version is None else _versions(version),
        tags=dict(map(_tag, tags)),
        outcomes=[asked_of(each, f"--outcome {each}") for each in outcomes],
        told=told | _listed("--tag", tags) | _listed("--outcome", outcomes),
    )


def where_of(where: Sequence[str]) -> TurnChoice:
    """Read what several `--where KIND=VALUE` say. Raises ConfigError naming the one at fault."""
    given: dict[str, list[str]] = {}
    for each in where:
        kind, equals, value = each.partition("=")
        if kind not in _KINDS or not (equals and value):
            raise ConfigError(f"--where {each}: want {', '.join(f'{kind}=…' for kind in _KINDS)}")
        given.setdefault(kind, []).append(value)
    for kind in ("namespace", "workload", "version"):
        if len(given.get(kind, ())) > 1:
            raise ConfigError(f"--where {kind}={given[kind][1]}: a turn has one {kind}, and {given[kind][0]} was said")
    one = {kind: values[0] for kind, values in given.items()}
    try:
        choice = choice_of(
            None, None, one.get("namespace"), one.get("workload"), one.get("version"),
            given.get("tag", ()), given.get("outcome", ()),
        )  # fmt: skip
    except ConfigError as error:
        option, _, said = str(error).partition(" ")
        raise ConfigError(f"--where {option.removeprefix('--')}={said}") from error
    return replace(choice, told={kind: ", ".join(sorted(values)) for kind, values in sorted(given.items())})


def chosen_of(choice: TurnChoice, ids: Collection[InferenceId], store: Store) -> Iterator[Completion]:
    """Yield the chosen among turns that are in the store; what was said of them is there, too, if it is asked for."""
    in_order = sorted(ids)
    for start in range(0, len(in_order), _AT_ONCE):
        with store.look() as view:
            found = view.turns.get_many(in_order[start : start + _AT_ONCE])
        sessions: defaultdict[tuple[Namespace, SessionId], list[Completion]] = defaultdict(list)
        for turn in found.values():
            if choice.wants(turn):
                sessions[turn.namespace, turn.session_id].append(turn)
        for session in sessions.values():
            said = outcomes_of(session, [store]) if choice.outcomes else {}
            yield from (turn for turn in session if are_said(choice.outcomes, said.get(turn.inference_id, ())))


def _listed(option: str, values: Sequence[str]) -> dict[str, str]:
    return {option: ", ".join(values)} if values else {}


def _versions(text: str) -> tuple[int, int]:
    ends = text.split("-")
    if len(ends) > 2 or not all(end.isascii() and end.isdigit() for end in ends):
        raise ConfigError(f"--version {text}: want the number of a version, or two as 12-40")
    first, last = int(ends[0]), int(ends[-1])
    if first > last:
        raise ConfigError(f"--version {text}: {first} comes after {last}")
    return first, last


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--tag {text}: want NAME=VALUE")
    return name, value
