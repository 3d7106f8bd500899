"""The part of the ledger that one transaction needs, changed in memory and written back at once.

It is deterministic in event time: each partition of the log is a machine of its own, which handles its records one by
one in the order of offsets. Before a record that arrived at t, the waits of its partition that are over by t end, in
order of (due_at, inference_id). Whatever changes the value of a turn makes a reward at once, so neither the size of a
batch nor the order in which partitions are read can change any reward."""

import heapq
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from core import telemetry
from core.events import Completion, DeadLetter, Outcome, Reward, SessionEnded
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.operations.ledger import Facts, Heard, LedgerEntry, SessionKey
from core.ports import Record
from core.records.handling import attempt, words_of
from core.reward_spec import RewardSpec
from core.store.work import View, Work
from scoring.derived import derive
from scoring.ledger.bounds import is_heard, kept, may_wait
from scoring.ledger.pages import load_sessions
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.unusable import letter_of
from scoring.rewards.defence import LeftOut, is_on, left_out
from scoring.rewards.facts import facts_of
from scoring.rewards.rules import Decision, decide, news_about, outcomes_about
from scoring.rewards.state import Session, open_turn
from scoring.rewards.usable import fault_of

_Scored = Completion | Outcome | SessionEnded
logger = logging.getLogger(__name__)
_Counts = dict[int, int]


class LedgerTransaction:
    """A transaction: `take` or `let_pass`, once.

    Then `rewards` are those made, in order, and `dead_letters` the outcomes that could not be used."""

    def __init__(self, spec: RewardSpec, cache: SessionCache | None = None) -> None:
        """Make a transaction. `cache`: of sessions; once the transaction is over, its `sessions` belong there."""
        self._spec = spec
        self._cache = SessionCache() if cache is None else cache
        self._digest = spec.digest
        self._is_defended = is_on(spec.defence) or any(scope.defence for scope in spec.scopes)
        self.rewards: list[Reward] = []
        self.concluded: list[Outcome] = []  # derived from what came
        self.dead_letters: list[DeadLetter] = []
        self.oddities = Counter[str]()
        self.newly_open = 0  # turns that began to wait, less those that ceased to
        self._sessions: dict[SessionKey, Session] = {}
        self._owner: dict[InferenceId, Session] = {}
        self._known: set[tuple[Namespace, OutcomeId]] = set()
        self._early: dict[InferenceId, list[Heard]] = {}  # outcomes that wait for their turn
        self._due: dict[int, list[tuple[datetime, InferenceId]]] = {}  # by partition: a heap, stale entries included
        self._changed_turns: dict[InferenceId, LedgerEntry] = {}
        self._changed_sessions: dict[SessionKey, Session] = {}
        self._changed_outcomes: dict[tuple[Namespace, OutcomeId], tuple[Heard, SessionId | None]] = {}

    def take(self, work: Work, records: Sequence[Record]) -> None:
        """Handle all of `records`, and the waits that are over before the last of them."""
        until: dict[int, datetime] = {}
        for record in records:
            if isinstance(record.event, _Scored):
                at = record.event.received_at
                until[record.partition] = max(at, until.get(record.partition, at))
        self._load(work, records, until)
        for record in records:
            self._apply(record)
        self._save(work)

    def count_oddities(self) -> None:
        """Count oddities for the metrics, once the transaction has ended, so that a retry does not count twice."""
        for reason, count in self.oddities.items():
            telemetry.SCORER_ODDITIES.labels(reason=reason).inc(count)

    def let_pass(self, work: Work, until: Mapping[int, datetime]) -> None:
        """Let time pass in each partition to the given moment, where no record does."""
        self._load(work, (), until)
        for partition, moment in sorted(until.items()):
            self._expire(partition, moment)
        self._save(work)

    @property
    def sessions(self) -> Iterable[Session]:
        """The sessions as the store has them, once the transaction is over."""
        return self._sessions.values()

    # ------------------------------------------------------------------------------------------ the store

    def _load(self, view: View, records: Sequence[Record], until: Mapping[int, datetime]) -> None:
        """Load what `records` can change, and the turns whose waits are over by their partition's moment."""
        events = [record.event for record in records]
        outcomes = [event for event in events if isinstance(event, Outcome)]
        spoken_of = {event.inference_id for event in outcomes if event.inference_id is not None}
        opened = {event.inference_id for event in events if isinstance(event, Completion)}
        owners = view.ledger.sessions_of(spoken_of | opened)
        due = view.ledger.due_turns(until)
        keys = set(owners.values())
        keys |= {_key(event) for event in events if isinstance(event, Completion | SessionEnded)}
        keys |= {_key(outcome) for outcome in outcomes if outcome.inference_id is None}
        keys |= {SessionKey((turn.namespace, turn.session_id)) for turn in due}
        self._sessions = self._cache.lend(keys)
        self._sessions |= load_sessions(view, keys - self._sessions.keys())
        self._owner = {inference_id: self._sessions[key] for inference_id, key in owners.items()}
        self._known = view.ledger.known_outcomes(map(_identity, outcomes))
        for early in view.ledger.early_outcomes(opened | (spoken_of - owners.keys())):
            self._expect(early)
        for row in due:
            session = self._sessions[SessionKey((row.namespace, row.session_id))]
            self._remember_due(session.turns[row.inference_id], session)

    def _save(self, work: Work) -> None:
        work.ledger.put_turns(self._changed_turns.values())
        work.ledger.put_sessions(session.row for session in self._changed_sessions.values())
        work.ledger.put_outcomes(self._changed_outcomes.values())
        work.outcomes.put(self.concluded)
        work.rewards.put([(self._partition(reward), reward) for reward in self.rewards])

    def _partition(self, reward: Reward) -> int:
        return self._owner[reward.inference_id].turns[reward.inference_id].partition

    # ------------------------------------------------------------------------------------------ events

    def _apply(self, record: Record) -> None:
        event = record.event
        if not isinstance(event, _Scored):
            self.oddities["undecodable" if event is None else "foreign"] += 1
            return
        self._expire(record.partition, event.received_at)
        if isinstance(event, Completion):
            self._open(event, record.partition, record.offset)
        elif isinstance(event, Outcome):
            self._hear(Heard(event, record.offset), record.partition)
        else:
            self._end(event)

    def _expire(self, partition: int, until: datetime) -> None:
        """End the waits that are over."""
        waits = self._due.get(partition, [])
        while waits and waits[0][0] <= until:
            due_at, inference_id = heapq.heappop(waits)
            session = self._owner[inference_id]
            turn = session.turns[inference_id]
            if turn.due_at == due_at:
                failure = attempt(partial(self._decide, turn, session, due_at))
                if failure is not None:
                    self._leave_undecided(turn, failure)

    def _leave_undecided(self, turn: LedgerEntry, failure: Exception) -> None:
        """End this turn's wait without a decision: no record is to blame for what fails as time passes."""
        self.oddities["undecidable"] += 1
        logger.error("turn %s is not decided: %s", turn.inference_id, words_of(failure), exc_info=failure)
        self.newly_open -= turn.due_at is not None
        turn.due_at, turn.closed = None, True
        self._changed_turns[turn.inference_id] = turn

    def _open(self, completion: Completion, partition: int, offset: int) -> None:
        if completion.inference_id in self._owner:
            self.oddities["duplicate"] += 1
            return
        session = self._session(_key(completion))
        turn = open_turn(completion, partition, self._facts(completion, session))
        session.add(turn)
        self._owner[turn.inference_id] = session
        now = completion.received_at
        session.last_at = now if session.last_at is None else max(session.last_at, now)
        told_end = session.ended_at is not None and session.ended_at > now  # while this one was being answered
        session.ended_at = now if completion.session_done else session.ended_at if told_end else None
        self._changed_sessions[session.key] = session
        early = [heard for heard in self._early.pop(turn.inference_id, []) if heard.outcome.namespace == turn.namespace]
        for heard in early:
            self._keep(heard, session)
        self._changed_turns[turn.inference_id] = turn
        self._decide(turn, session, now)
        self._conclude(completion, session, offset)
        if early and self._is_defended:
            self._reschedule((other for other in session.turns.values() if other is not turn), session, now)
        elif any(heard.outcome.received_at >= now for heard in session.heard_of(None)):  # it was in the middle
            self._reschedule((other for other in session.waiting.values() if other is not turn), session, now)
        else:
            self._shorten(session, now)

    def _conclude(self, completion: Completion, session: Session, offset: int) -> None:
        """Derive outcomes on earlier turns from this one."""
        rules = self._spec.rules(completion.workload, completion.namespace)
        concluded = derive(completion, session, rules.derived, rules.outcomes)
        for outcome in concluded:
            self._keep(Heard(outcome, offset), session)
        self.concluded += concluded
        about = {outcome.inference_id for outcome in concluded} - {None}
        turns = (session.turns[each] for each in about if each is not None)
        self._reschedule(turns, session, completion.received_at)

    def _facts(self, completion: Completion, session: Session) -> Facts:
        parent = None if completion.parent_id is None else session.turns.get(completion.parent_id)
        rules = self._spec.rules(completion.workload, completion.namespace)
        return facts_of(completion, None if parent is None else parent.facts, rules)

    def _hear(self, heard: Heard, partition: int) -> None:
        outcome = heard.outcome
        identity = _identity(outcome)
        if fault := fault_of(outcome, self._spec.outcomes.get(outcome.name)):
            self._refuse(heard, partition, fault)
            return
        if identity in self._known:
            self.oddities["duplicate"] += 1
            return
        self._known.add(identity)
        if outcome.inference_id is None:
            session = self._session(_key(outcome))
        else:
            owner = self._owner.get(outcome.inference_id)
            if owner is None or owner.key[0] != outcome.namespace:
                self._hear_early(heard)
                return
            session = owner
        if not is_heard(session, outcome):
            self.oddities["too_many"] += 1
            return
        amended = session.heard.get(outcome.supersedes) if outcome.supersedes is not None else None
        before = {id(out): len(out.changes) for out in self._left_out(session)}
        self._keep(heard, session)
        concerned = self._concerned(session, outcome, amended, before)
        decisions = [self._decide(turn, session, outcome.received_at) for turn in concerned]
        if any(outcome.name in decision.contradicting for decision in decisions):
            self.oddities["contradiction"] += 1
        self._count_left_out(outcome, session)

    def _hear_early(self, heard: Heard) -> None:
        """Keep what is said of a turn that is not known yet, or of one that this namespace does not have."""
        self.oddities["unknown_inference"] += 1
        assert heard.outcome.inference_id is not None
        if not may_wait(heard.outcome, self._early.get(heard.outcome.inference_id, ())):
            self.oddities["too_many"] += 1
            return
        early = kept(heard)
        self._expect(early)
        self._changed_outcomes[_identity(heard.outcome)] = (early, None)

    def _end(self, ended: SessionEnded) -> None:
        session = self._session(_key(ended))
        session.ended_at = ended.received_at
        session.last_at = session.last_at or ended.received_at
        self._changed_sessions[session.key] = session
        self._shorten(session, ended.received_at)

    # ------------------------------------------------------------------------------------------ the pages

    def _session(self, key: SessionKey) -> Session:
        return self._sessions.setdefault(key, Session(key=key))

    def _expect(self, heard: Heard) -> None:
        assert heard.outcome.inference_id is not None
        self._early.setdefault(heard.outcome.inference_id, []).append(heard)

    def _keep(self, heard: Heard, session: Session) -> None:
        heard = kept(heard, session)
        session.hear(heard)
        self._changed_outcomes[_identity(heard.outcome)] = (heard, session.key[1])

    def _remember_due(self, turn: LedgerEntry, session: Session) -> None:
        self._owner[turn.inference_id] = session
        if turn.due_at is not None:
            heapq.heappush(self._due.setdefault(turn.partition, []), (turn.due_at, turn.inference_id))

    def _concerned(
        self, session: Session, outcome: Outcome, amended: Heard | None, before: _Counts
    ) -> list[LedgerEntry]:
        """Return the turns that an outcome concerns; it may also cause another's outcomes to be left out.

        `before`: how many changes of what is left out there had been."""
        subjects = {outcome.inference_id} | ({amended.outcome.inference_id} if amended else set())
        for out in self._left_out(session):
            changed = out.changes[before.get(id(out), 0) :]
            subjects |= {session.heard[outcome_id].outcome.inference_id for outcome_id in changed}
        if None in subjects:
            turns = list(session.turns.values())
        else:
            turns = [session.turns[subject] for subject in subjects if subject is not None and subject in session.turns]
        return sorted(turns, key=lambda turn: turn.order)

    def _left_out(self, session: Session) -> list[LeftOut]:
        """Return what is left out, by each of the defences that the session's turns have."""
        if not self._is_defended:
            return []
        return [left_out(session, spec) for spec in {self._spec.rules(*place).defence for place in session.places}]

    def _count_left_out(self, outcome: Outcome, session: Session) -> None:
        reasons = {out.reason(outcome.outcome_id) for out in self._left_out(session)}
        self.oddities.update(reason for reason in reasons if reason is not None)

    def _refuse(self, heard: Heard, partition: int, fault: str) -> None:
        """Put an outcome among the dead letters; brought back once the spec knows it, it counts like any other."""
        reason = "unusable_value" if heard.outcome.name in self._spec.outcomes else "unknown_outcome"
        self.oddities[reason] += 1
        self.dead_letters.append(letter_of(heard, partition, fault))

    # ------------------------------------------------------------------------------------------ decisions

    def _shorten(self, session: Session, now: datetime) -> None:
        """Decide again the turns that wait longer than the session lasts, once that has ended.

        A session that goes on moves no turn here: if a turn's wait then seems over, `_decide` finds that it is not."""
        if session.ended_at is not None:
            ended_at = session.ended_at
            sooner = [turn for turn in session.waiting.values() if self._outwaits(turn, ended_at)]
            self._reschedule(sooner, session, now)

    def _outwaits(self, turn: LedgerEntry, ended_at: datetime) -> bool:
        end_wait_s = self._spec.rules(turn.workload, turn.namespace).session.end_wait_s
        return turn.due_at is not None and turn.due_at > ended_at + timedelta(seconds=end_wait_s)

    def _reschedule(self, turns: Iterable[LedgerEntry], session: Session, now: datetime) -> None:
        for turn in sorted(turns, key=lambda turn: turn.order):
            self._decide(turn, session, now)

    def _decide(self, turn: LedgerEntry, session: Session, now: datetime) -> Decision:
        self._owner[turn.inference_id] = session
        decision = decide(turn, session, outcomes_about(turn, session, self._spec), self._spec, now)
        if decision.value is not None and not math.isfinite(decision.value):
            raise ValueError(f"turn {turn.inference_id} would be worth {decision.value}")
        if (decision.due_at, decision.closed) != (turn.due_at, turn.closed):
            self.newly_open += (decision.due_at is not None) - (turn.due_at is not None)
            turn.due_at, turn.closed = decision.due_at, decision.closed
            self._changed_turns[turn.inference_id] = turn
            session.note_wait(turn)
            self._remember_due(turn, session)
        if turn.revision >= 0:
            if (decision.value, decision.on_spans) != (turn.value, turn.on_spans):
                self._reward(turn, session, decision, now)
        elif decision.decided:
            self._reward(turn, session, decision, now)
        return decision

    def _reward(self, turn: LedgerEntry, session: Session, decision: Decision, now: datetime) -> None:
        """Make the next revision of the reward, dated no earlier than the one before, whatever the clocks say."""
        news = news_about(turn, session, self._spec)
        arrivals = [heard.outcome.received_at for heard in news]
        why = decision.why + _corrected(turn, decision)
        turn.revision += 1
        turn.value, turn.on_spans = decision.value, decision.on_spans
        turn.decided_at = now if turn.decided_at is None else max(turn.decided_at, now)
        turn.seen_offset = max((heard.offset + 1 for heard in news), default=turn.seen_offset)
        self._changed_turns[turn.inference_id] = turn
        self.rewards.append(
            Reward(
                inference_id=turn.inference_id,
                session_id=turn.session_id,
                namespace=turn.namespace,
                workload=turn.workload,
                environment=turn.facts.environment,
                revision=turn.revision,
                value=decision.value or 0.0,
                components=decision.components,
                credits=decision.credits,
                hints=decision.hints,
                edits=decision.edits,
                edited_by=decision.edited_by,
                said_by=decision.said_by,
                outcome_ids=decision.outcome_ids,
                first_outcome_at=min(arrivals, default=None),
                last_outcome_at=max(arrivals, default=None),
                why=why,
                spec=self._digest,
                final=decision.final,
                decided_at=turn.decided_at,
                void=decision.value is None,
            )
        )


def _corrected(turn: LedgerEntry, decision: Decision) -> str:
    if turn.value is None:
        return ""
    return f"; corrects {turn.value:+.2f}" if decision.value != turn.value else "; corrects what it says of some tokens"


def _key(event: _Scored) -> SessionKey:
    assert event.session_id is not None, "an outcome names an inference or a session"
    return SessionKey((event.namespace, event.session_id))


def _identity(outcome: Outcome) -> tuple[Namespace, OutcomeId]:
    return outcome.namespace, outcome.outcome_id
