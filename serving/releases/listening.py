"""What the log says of turns that were served, heard once and told to the canary of each policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.events import Alarm, Reward
from core.ids import BASE, Namespace, PolicyName
from core.ports import Clock, EventLog, Store
from core.settings import PolicySettings, ReleaseSettings
from core.settings.policies import names_of, policy_of, rings_of
from serving.releases.canaries.excluded import ExcludedTurns
from serving.releases.canaries.observations import Observations, ServedTurn
from serving.releases.canary import Canary
from serving.releases.view import ReleaseView

_COMMIT_EVERY_S = 1.0


class Listening:
    """Used by the controller's thread.

    A turn, its reward and an alarm are of the policy that answers their namespace and workload."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        cluster: str,
        settings: ReleaseSettings,
        clock: Clock,
        policies: Mapping[str, PolicySettings],
    ) -> None:
        self._settings, self._clock, self._policies = settings, clock, policies
        self._excluded = ExcludedTurns(store)
        self._seen = Observations(log, clock, self._on_turn, self._on_reward)
        self.canaries = {
            policy: Canary(
                _OfPolicy(self, policy), cluster, settings, clock, policy, rings_of(policies, settings.rings, policy)
            )
            for policy in names_of(policies)
        }
        self._committed_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """True when it has its position in the log."""
        return self._seen.is_open

    def listen(self, views: Mapping[PolicyName, ReleaseView]) -> bool:
        """Read turns, rewards and alarms from the log; return whether there may be more.

        Turns that come one by one are no reason to look at everything again at once."""
        for policy, view in views.items():
            self.canaries[policy].follow(view)
        if self._excluded.look():
            self._leave_out_excluded()
        more = self._seen.read()
        for canary in self.canaries.values():
            canary.ripen()
        self._seen.forget(self._clock.now().timestamp() - self._settings.canary.horizon_s)
        if self._clock.monotonic() - self._committed_s > _COMMIT_EVERY_S and not self._is_needed_again(None):
            self._committed_s = self._clock.monotonic()
            self._seen.commit()
        return more

    def close(self) -> None:
        self._seen.close()

    def alarms_of(self, policy: PolicyName) -> list[Alarm]:
        return [alarm for alarm in self._seen.alarms.values() if self._policy_of_alarm(alarm) == policy]

    def forget_alarms_of(self, policy: PolicyName) -> None:
        for alarm in self.alarms_of(policy):
            del self._seen.alarms[alarm.alarm_id]

    def commit_for(self, policy: PolicyName) -> None:
        if not self._is_needed_again(policy):
            self._seen.commit()

    def _is_needed_again(self, policy: PolicyName | None) -> bool:
        """Return whether an experiment of another policy runs, whose evidence the next controller reads again."""
        return any(canary.is_running for name, canary in self.canaries.items() if name != policy)

    def _policy_of_alarm(self, alarm: Alarm) -> PolicyName:
        if alarm.namespace is None or alarm.workload is None:
            return BASE
        return policy_of(self._policies, alarm.namespace, alarm.workload)

    def _canary_of(self, namespace: Namespace, workload: str) -> Canary:
        return self.canaries[policy_of(self._policies, namespace, workload)]

    def _leave_out_excluded(self) -> None:
        now = self._clock.now()
        for turn in self._seen.turns:
            if self._excluded.covers(turn, now):
                self._canary_of(turn.namespace, turn.workload).leave_out(turn)

    def _on_turn(self, turn: ServedTurn) -> None:
        self._canary_of(turn.namespace, turn.workload).take_turn(turn)

    def _on_reward(self, turn: ServedTurn, reward: Reward) -> None:
        is_excluded = self._excluded.covers(turn, reward.decided_at)
        self._canary_of(turn.namespace, turn.workload).take_reward(turn, reward, is_excluded=is_excluded)


@dataclass(frozen=True)
class _OfPolicy:
    """What one policy's canary hears."""

    listening: Listening
    policy: PolicyName

    def alarms(self) -> Sequence[Alarm]:
        return self.listening.alarms_of(self.policy)

    def forget_alarms(self) -> None:
        self.listening.forget_alarms_of(self.policy)

    def commit(self) -> None:
        self.listening.commit_for(self.policy)
