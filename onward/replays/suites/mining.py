"""`onward suite mine`: drafts of eval cases out of a service's own sessions.

A session is skipped if any of its turns may not be learned from or stored, since later turns quote it. An agent's
session with tools becomes the draft of a task."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from rich.console import Console
from rich.progress import Progress

from api.turns.intake import PROCESSING_PURPOSE
from core.errors import ConfigError
from core.events import Completion, Outcome, Reward
from core.ids import InferenceId, Namespace
from core.ports import Store
from core.store import open_sqlite
from environments.cases.prepared import prepared
from environments.errors import EnvironmentFault
from environments.tasks.harbor.folder import read_tasks
from learner.sequences.resemblance import Solutions, answers_of
from onward.replays.exports.choice import TurnChoice
from onward.replays.exports.conversations import Conversations
from onward.replays.exports.past import ChosenPast, Logged
from onward.replays.exports.reports import require_folder
from onward.replays.history import require_directory
from onward.replays.provenance import VersionRange, provenance_of
from onward.replays.scratch import scratch
from onward.replays.suites.agents import Agents, calls_tools
from onward.wiring.foundation import open_foundation
from onward.wiring.suites.usable import why_unusable
from serving.evals.agent_work import AgentWork, State
from serving.evals.cases import DRAFTS, REJECTED, CaseMessage, Draft, Origin, Reuse, read_drafts, read_suite
from serving.evals.drafts.tasks import state_of
from serving.evals.drafts.written import put_draft
from serving.rendering import load_renderer

_ANSWERS: Final = ("turn", "suggestion")  # purposes of turns whose answers users see
_BEYOND: Final = "beyond_most"
_OF_ONE: Final = 0.1
"""The share of the drafts that one user's may take before others' have been looked at: who names her sessions, names
their order."""
_MANY, _MUCH = 5, 0.1
"""Other users whose answers say what a draft's solution says, and what share of all turns these are: as many are not
kept from being learned from for one user's draft."""


@dataclass(frozen=True)
class DraftFilter:
    """Which sessions are drafted: at most `most`, each with a last answer whose reward is at least `least`.

    `purposes`: the purposes that a turn may state. `tasks`: folders of tasks in whose environments agents may have
    begun; `kept` is the folder of their images, and `images` says what stands for an image that no engine can pull."""

    least: float = 0.5
    most: int = 100
    namespace: str | None = None
    purposes: tuple[str, ...] = ()
    tasks: tuple[Path, ...] = ()
    kept: Path = Path("build/environments")
    images: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options. Raises ConfigError naming the one at fault."""
        if self.most < 1:
            raise ConfigError(f"--most {self.most}: want 1 or more")


@dataclass(frozen=True)
class Mined:
    """What came of it: the files of the drafts, and the sessions of which there is none, by reason.

    `missing`: records that are neither in the log nor in the archive any more. `is_kept_out`: the directory's learner
    does not train on what resembles a draft of this suite. `origin`: where the sessions come from."""

    sessions: int
    drafts: list[Path]
    left_out: dict[str, int]
    missing: int
    is_kept_out: bool
    origin: dict[str, Any]

    def report(self) -> dict[str, Any]:
        drafts = [str(path) for path in self.drafts]
        counts = {"sessions": self.sessions, "drafts": drafts, "left_out": self.left_out, "missing": self.missing}
        return counts | {"kept_out": self.is_kept_out}


def mine(directory: Path, suite: Path, wanted: DraftFilter, overrides: Mapping[str, str]) -> Mined:
    """Draft cases of the directory's sessions into a suite, which may be new. Raises ConfigError.

    The same sessions give the same drafts: what is a draft, was rejected or is a case is not drafted again."""
    require_folder(suite, "a suite of cases")
    require_directory(directory, overrides)
    states = _states_of(wanted)
    known, drafts = _Known(suite), _Drafts(suite, wanted.most)
    suite.mkdir(parents=True, exist_ok=True)
    counts, sessions, versions = Counter[str](), 0, VersionRange()
    namespace = None if wanted.namespace is None else Namespace(wanted.namespace)
    with (
        closing(open_foundation(directory, overrides)) as source,
        scratch(source.layout.mined, f"{directory}") as place,
        closing(open_sqlite(place / "store.db")) as store,
        Progress(console=Console(stderr=True)) as progress,  # on stdout is what is returned
    ):
        past = ChosenPast(source, store, TurnChoice(namespace=namespace))
        past.read(progress)
        talk = Conversations(load_renderer(source.model, family=source.settings.serving.family))
        agents = Agents(talk, states)
        for session in past.sessions():
            sessions += 1
            for logged in session:
                versions.add_turn(logged.turn)
            found = _unusable(source.store, session, wanted) or _drafted(session, past, talk, agents, wanted.least)
            why = drafts.take(found, known) if isinstance(found, Draft) else found
            counts.update([why] if why else [])
        counts.update(drafts.fill_up(known))
        counts.update(drafts.write(_said_by_many(past, drafts.chosen)))
        is_kept_out = suite.resolve() in {path.resolve() for path in source.settings.learner.admission.keep_out}
        origin = provenance_of(source, versions)
    return Mined(sessions, drafts.paths, dict(sorted(counts.items())), past.missing, is_kept_out, origin)


def _states_of(wanted: DraftFilter) -> dict[str, State]:
    """Return the states from which agents' sessions may have begun, by the digests of their images.

    Raises ConfigError naming a task at fault."""
    if not wanted.tasks:
        return {}
    try:
        folders = [task.folder for task in read_tasks(wanted.tasks)]
        made = asyncio.run(prepared(folders, wanted.kept.resolve(), wanted.images))
    except EnvironmentFault as error:
        raise ConfigError(f"--tasks: {error}") from error
    found: dict[str, State] = {}
    for folder, task in zip(folders, made, strict=True):
        if isinstance(task, str):
            raise ConfigError(f"--tasks: {folder}: {task}")
        state = state_of(folder, task.spec.workdir)
        if task.image is not None and state is not None:
            found.setdefault(task.image, state)
    return found


def _unusable(store: Store, session: Sequence[Logged], wanted: DraftFilter) -> str | None:
    """Return why a session may not be used, whatever was said in it; None where it may."""
    stated = {each.turn.tags[PROCESSING_PURPOSE] for each in session if PROCESSING_PURPOSE in each.turn.tags}
    rewards = [each.reward for each in session if each.reward is not None]
    why = why_unusable(store, [each.turn for each in session], rewards)
    return why or ("other_purpose" if stated - set(wanted.purposes) else None)


def _drafted(
    session: Sequence[Logged], past: ChosenPast, talk: Conversations, agents: Agents, least: float
) -> Draft | str:
    """Return the draft of a session's last answer or of an agent's work, or why there is none."""
    answers = [each for each in session if each.turn.purpose in _ANSWERS]
    if not answers:
        return "no_answer"
    last = max(answers, key=lambda each: (each.turn.received_at, each.turn.inference_id))
    if last.turn.environment != "production":
        return "simulated"
    if last.reward is None:
        return "unrewarded"
    if last.reward.void or last.reward.value < least:
        return "void" if last.reward.void else "below_least_reward"
    if calls_tools(session):
        return _task_of(last.turn, last.reward, session, agents, past.outcomes(session))
    return _case_of(last.turn, last.reward, talk, past.outcomes(session))


def _case_of(
    turn: Completion, reward: Reward, talk: Conversations, outcomes: Mapping[InferenceId, Sequence[Outcome]]
) -> Draft | str:
    prompt, kept = talk.prompt(turn), talk.kept(turn, reward)
    if prompt is None:
        return "no_conversation"
    solution = (kept or {"content": turn.text})["content"]
    if any(message["role"] == "tool" or "tool_calls" in message for message in prompt):
        return "calls_tools"  # which nobody logged: a case has no tools to answer them
    asked = next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")
    if not solution.strip() or not asked.strip():
        return "no_words"
    messages = tuple(CaseMessage(role=message["role"], content=message["content"]) for message in prompt)
    return _draft(turn, reward, outcomes, messages=messages, solution=solution, edited=kept is not None)


def _task_of(
    turn: Completion,
    reward: Reward,
    session: Sequence[Logged],
    agents: Agents,
    outcomes: Mapping[InferenceId, Sequence[Outcome]],
) -> Draft | str:
    found = agents.work_of(session, turn)
    if isinstance(found, str):
        return found
    asked, work = found
    messages = (CaseMessage(role="user", content=asked),)
    solution = "\n\n".join(change.text for change in work.changes)
    edited = any(each.reward is not None and each.reward.edits for each in session)
    return _draft(turn, reward, outcomes, messages=messages, solution=solution, edited=edited, work=work)


def _draft(
    turn: Completion,
    reward: Reward,
    outcomes: Mapping[InferenceId, Sequence[Outcome]],
    *,
    messages: tuple[CaseMessage, ...],
    solution: str,
    edited: bool,
    work: AgentWork | None = None,
) -> Draft:
    said = outcomes.get(turn.inference_id, ())
    return Draft(
        name=f"mined-{blake3(turn.inference_id.encode()).hexdigest()[:12]}",
        messages=messages,
        solution=solution,
        source=Origin(
            session=turn.session_id,
            turn=turn.inference_id,
            versions=tuple(dict.fromkeys(str(span.version) for span in turn.policy_versions)),
            received_at=turn.received_at,
            reward=reward.value,
            reward_spec=reward.spec,
            outcomes=(*_in_words(said), *_of_others(said, reward)),
            edited=edited,
        ),
        reuse=Reuse(namespace=turn.namespace, user=turn.user_id, key=turn.key_id),
        work=work,
    )


def _said_by_many(past: ChosenPast, drafts: Sequence[Draft]) -> set[str]:
    """Return the names of drafts whose solutions much of what other users were answered tells already.

    What resembles a draft is kept out of training, whoever asked. So whoever makes of her answer what most answers have
    in common would keep these from being learned from."""
    solutions = Solutions({(draft.name, place): text for draft in drafts for place, text in draft.kept_out().items()})
    own = {draft.name: (draft.reuse.namespace, draft.reuse.user or draft.source.session) for draft in drafts}
    turns, told, by = 0, Counter[str](), defaultdict[str, set[tuple[str, str]]](set)
    for session in past.sessions() if drafts else ():
        for turn in (each.turn for each in session):
            turns += 1
            unit = turn.namespace, turn.user_id or turn.session_id
            found = {name for text in answers_of(turn) for name, _ in solutions.all_resembled_by(text)}
            for name in (name for name in found if own[name] != unit):
                told[name] += 1
                by[name].add(unit)
    return {name for name, count in told.items() if count >= _MUCH * turns and len(by[name]) >= _MANY}


def _in_words(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what was said of an answer, but for texts, which are their writers' own."""
    for outcome in sorted(outcomes, key=lambda each: each.received_at):
        if not isinstance(outcome.value, str):
            yield f"{outcome.name}: {outcome.value}"


def _of_others(outcomes: Sequence[Outcome], reward: Reward) -> Iterator[str]:
    """Yield how many other users made something else of the answer than what is the solution, if any did."""
    others = {
        each.user_id for each in outcomes if each.edits and each.edits != reward.edits and each.user_id is not None
    } - {reward.edited_by}
    if others:
        yield (
            "another user's edit says otherwise"
            if len(others) == 1
            else f"{len(others)} other users' edits say otherwise"
        )


class _Drafts:
    """The drafts that are made: of each user a share, and more once all sessions have been looked at.

    Turns of a namespace that name no user share one: a share for each of their sessions would be as many as somebody
    cares to begin."""

    def __init__(self, suite: Path, most: int) -> None:
        self.paths: list[Path] = []
        self.chosen: list[Draft] = []
        self._suite, self._most = suite, most
        self._of_user = Counter[tuple[str, str | None]]()
        self._later: list[Draft] = []

    def take(self, draft: Draft, known: "_Known") -> str | None:
        """Choose a draft, or keep it for later; or return why there is none."""
        user = draft.reuse.namespace, draft.reuse.user
        if self._of_user[user] >= max(1, int(_OF_ONE * self._most)):
            if len(self._later) == self._most:
                return known.place_of(draft) or _BEYOND
            self._later.append(draft)
            return None
        why = self._choose(draft, known)
        if why is None:
            self._of_user[user] += 1
        return why

    def fill_up(self, known: "_Known") -> Iterator[str]:
        """Choose what was kept for later where there is still room; yield why not of each of the others."""
        for draft in self._later:
            if (why := self._choose(draft, known)) is not None:
                yield why

    def write(self, said_by_many: Collection[str]) -> Iterator[str]:
        """Write what was chosen; yield why not of each of the others."""
        for draft in self.chosen:
            if draft.name in said_by_many:
                yield "said_by_many"
            else:
                self.paths.append(put_draft(self._suite, draft))

    def _choose(self, draft: Draft, known: "_Known") -> str | None:
        why = known.place_of(draft) or (_BEYOND if len(self.chosen) >= self._most else None)
        if why is None:
            known.add(draft)
            self.chosen.append(draft)
        return why


class _Known:
    """Cases and drafts, also rejected ones: what asks the same as one, or has a solution like its, is not drafted."""

    def __init__(self, suite: Path) -> None:
        self._solutions, self._asked = Solutions[tuple[str, str]]({}), Solutions[tuple[str, str]]({})
        if not any(suite.rglob("*.toml")):
            return
        read = read_suite(suite)
        for name, text in read.asked().items():
            self._asked.add(("like_a_case", name), text)
        for name, text in read.solutions().items():
            self._solutions.add(("like_a_case", name), text)
        for draft in [*read.drafts.values(), *read_drafts(suite / DRAFTS / REJECTED).values()]:
            self._put(
                ("like_a_draft" if draft.why is None else "like_a_rejected_one", draft.name),
                draft.asked,
                draft.solution,
            )

    def place_of(self, draft: Draft) -> str | None:
        """Return why the draft is nothing new; None when it is."""
        found = self._solutions.resembled_by(draft.solution) or self._asked.resembled_by(draft.asked)
        return None if found is None else found[0]

    def add(self, draft: Draft) -> None:
        self._put(("like_a_draft", draft.name), draft.asked, draft.solution)

    def _put(self, name: tuple[str, str], asked: str, solution: str) -> None:
        self._asked.add(name, asked)
        self._solutions.add(name, solution)
