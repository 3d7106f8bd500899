"""One hostile user against releases: twenty that are as good as what they replace, and a user with most of the turns.

    python -m bench one_user_trials [--trials 20]

She has three turns for each of all others together. Directly released versions are watched by the product's guards
over the product's window of recent turns: hers are fine until the version changes and then break in one way, in the
workload of all others, in one of her own, or in fifty. A canary is judged by rewards: she rejects all that the canary
says and accepts all else. And monitors look at turns and rewards of which hers are as bad as can be: does an alarm
hold releases? Every row is of how many releases were lost, and says what is lost without her where that is not none."""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from rich.progress import track

from bench.log.embedded_log import turn
from bench.releases import rollback_trials
from bench.scoring.monitors import SPEC, World
from bench.table import Row, report
from core.clock import SystemClock
from core.events import Completion, Environment, Topic
from core.ids import InferenceId, UserHash, base_ref, new_inference_id, new_session_id
from core.reward_spec import load_reward_spec
from core.settings import CanarySettings, MonitorSettings
from core.stages.rounds import Rounds
from scoring.watching import MonitorStage
from serving.releases.canaries.guards import tripped
from serving.releases.canaries.observations import ServedTurn
from serving.releases.canaries.recent import RecentTurns

TRIALS = 20
CROWDS = (8, 20, 50, 200)  # honest users
OF_EACH = 12  # turns of an honest user before a release, and as many after
MOST_TURNS = 400  # of all honest users before a release, and as many after
HER_TURNS = 3  # for each of all others together
FAILING = 0.01  # of everybody's turns
GUARDED_EVERY = 40  # turns
HER = "she"
SETTINGS = CanarySettings()
LOOKED_AT = 500  # turns of others before she begins, and as many while she is there
HONEST_USERS = 60
WAYS: Mapping[str, Mapping[str, object]] = {
    "over-long answers": {"over_long": True, "finish_reason": "length", "tokens": 4096},
    "answers of one token": {"over_long": True, "finish_reason": "length", "tokens": 1},
    "errors": {"finish_reason": "error"},
    "invalid calls": {"invalid_call": True},
    "empty answers": {"empty": True},
    "slow answers": {"latency_ms": 600_000.0},
}
PLACES = {"others' workload": 0, "a workload of her own": 1, "fifty of her own": 50}


@dataclass(frozen=True)
class Attack:
    way: str
    place: str
    users: int


def is_rolled_back(attack: Attack, seed: int) -> bool:
    """Return whether a guard takes a version back that is as good as the one before it."""
    rng = random.Random(f"{attack}{seed}")
    served = RecentTurns(SETTINGS.guard_turns)
    for version in (1, 2):
        honest = min(OF_EACH * attack.users, MOST_TURNS)
        said = [f"user {number % attack.users}" for number in range(honest)]
        said += [HER] * (HER_TURNS * len(said))
        rng.shuffle(said)
        for number, unit in enumerate(said):
            served.append(_turn(rng, attack, unit, version, len(said) * version + number))
            if version == 2 and number % GUARDED_EVERY == 0:
                new, old = ([each for each in served if each.version == base_ref(which)] for which in (2, 1))
                if tripped(new, old, slower_times=None) is not None:
                    return True
    return False


def _turn(rng: random.Random, attack: Attack, unit: str, version: int, number: int) -> ServedTurn:
    made = ServedTurn(
        inference_id=InferenceId(str(number)),
        unit=unit,
        experiment_id=None,
        arm="live",
        arm_assigned="live",
        version=base_ref(version),
        received_at_s=float(number),
        workload="write",
        purpose="turn",
        finish_reason="error" if rng.random() < FAILING else "stop",
        invalid_call=False,
        latency_ms=rng.lognormvariate(7, 0.5),
        ttft_ms=None,
        tokens=40,
        empty=False,
        over_long=False,
    )
    if unit != HER:
        return made
    places = PLACES[attack.place]
    workload = made.workload if not places else f"hers {number % places}"
    return msgspec.structs.replace(made, workload=workload, **(WAYS[attack.way] if version == 2 else {}))


def alarms_that_hold(seed: int, *, with_her: bool) -> list[str]:
    """Return the alarms that hold releases after turns of which a user's are as bad as can be."""
    rng = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-one-user-") as folder,
        closing(World(Path(folder))) as world,
        closing(_watcher(world)) as watcher,
    ):
        rounds = Rounds("monitors", watcher)
        rounds.step(0.0)
        for is_attack in (False, True):
            for _ in range(LOOKED_AT // 50):
                said = [_said(rng, f"user {rng.randrange(HONEST_USERS)}", "production") for _ in range(50)]
                if is_attack and with_her:
                    said += [_hers(rng) for _ in range(50 * HER_TURNS)]
                rng.shuffle(said)
                world.log.append_blocking(Topic.TURNS, said)
                values = [-1.0 if each.user_id == HER else rng.gauss(0.5, 0.2) for each in said]
                rewards = [
                    msgspec.structs.replace(world.reward(each), value=value, components={"accepted": value})
                    for each, value in zip(said, values, strict=True)
                ]
                world.log.append_blocking(Topic.REWARDS, rewards)
                while rounds.step(0.0):
                    pass
        with world.store.look() as view:
            return [alarm.opening.monitor for alarm in view.alarms.holding_releases()]


def _watcher(world: World) -> MonitorStage:
    settings = MonitorSettings(every_s=1e-6, maturity_s=0.001)
    return MonitorStage(world.log, world.store, load_reward_spec(SPEC), settings, SystemClock())


def _said(rng: random.Random, user: str, environment: Environment) -> Completion:
    session_id, tokens = new_session_id(), tuple(rng.randrange(512) for _ in range(40))
    return msgspec.structs.replace(
        turn(),
        inference_id=new_inference_id(session_id),
        session_id=session_id,
        user_id=UserHash(user),
        environment=environment,
        received_at=datetime.now(UTC),
        token_ids=tokens,
        logprobs=tuple(-abs(rng.gauss(0.5, 0.2)) for _ in tokens),
        latency_ms=rng.lognormvariate(5, 0.5),
        text="x" * rng.randrange(20, 200),
    )


def _hers(rng: random.Random) -> Completion:
    """Return a turn that is long, slow, repeats itself, refuses, and says that it is simulated half of the time."""
    made = _said(rng, HER, rng.choice(("production", "simulated")))
    return msgspec.structs.replace(
        made,
        token_ids=(7,) * 400,
        logprobs=(-8.0,) * 400,
        latency_ms=900_000.0,
        text="I cannot help with that.",
        finish_reason="length",
    )


def is_canary_lost(users: int, seed: int, *, with_her: bool) -> bool:
    """Return whether a canary that is as good as the live version is not promoted."""
    case = replace(rollback_trials.EQUAL, users=users, hostile=with_her)
    return rollback_trials.run(case, (users, seed)).action != "promote"


def rows(trials: int) -> Iterator[Row]:
    for users in CROWDS:
        lost: Counter[str] = Counter()
        for way in track(WAYS, f"guards, {users} users"):
            for place in PLACES:
                lost[f"{way}, in {place}"] += sum(is_rolled_back(Attack(way, place, users), n) for n in range(trials))
        worst, most = lost.most_common(1)[0]
        named = f" ({worst})" if most else ""
        what = f"{users} users and her: rolled back by a guard, the worst of {len(lost)} ways{named}"
        yield Row.at_most(what, most, f"of {trials} releases", "all", most / trials, 0.0)
    for users in (300, 1000):
        hers, nobodys = (
            np.array([is_canary_lost(users, n, with_her=w) for n in track(range(trials), f"canary, {users} users")])
            for w in (True, False)
        )
        what = f"{users} users and her: canaries lost, by her rewards"
        ratio = max(0, int(hers.sum()) - int(nobodys.sum())) / trials
        yield Row.at_most(what, int(hers.sum()), f"of {trials}", f"{int(nobodys.sum())} without her", ratio, 0.05)
    held: Counter[str] = Counter()
    for number in track(range(trials), "alarms"):
        held.update(alarms_that_hold(number, with_her=True))
    named = f" ({', '.join(held)})" if held else ""
    what = f"{HONEST_USERS} users and her: alarms that hold releases{named}"
    yield Row.at_most(what, held.total(), f"of {trials} times", "all", held.total() / trials, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    report("one_user_trials", list(rows(parser.parse_args().trials)))


if __name__ == "__main__":
    main()
