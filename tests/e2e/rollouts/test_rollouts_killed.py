"""Rollouts, or the service that they ask, killed at random moments: no episode is lost, and none counts twice."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from ports import free_port
from run_scripted import TASKS
from service_tree import Service, wait_for

from environments.rollouts.episode import EpisodeResult

pytestmark = pytest.mark.timeout(900)  # many processes that start, on whatever machine
KILLS, TRIES = 20, 40
KILLS_OF_THE_SERVICE = 3
PARTS = Path(__file__).resolve().parents[2] / "environments" / "rollouts" / "parts"


def start(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start the program, and return once it has begun an episode, or was done."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PARTS), str(PARTS.parents[3])])}
    command = [sys.executable, str(PARTS / "run_scripted.py"), url, str(folder), str(TRIES)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def kill_at_an_answer(process: "subprocess.Popen[bytes]", service: Service) -> None:
    before = len(sessions_with_turns(service))
    wait_for(lambda: len(sessions_with_turns(service)) > before or process.poll() is not None, 120, "an answer")
    process.kill()


def test_kills_at_random_moments_lose_and_double_nothing(make_service: Callable[..., Service], tmp_path: Path) -> None:
    service = make_service(learner__enabled=False, api__feedback__lookup_s=0.5).start()
    seed = int(os.environ.get("SEED", random.randrange(1 << 20)))
    rng, interrupted, url = random.Random(seed), 0, service.url + "/v1"
    for _ in range(KILLS):
        with start(url, tmp_path) as process:
            time.sleep(rng.uniform(0.0, 0.6))
            interrupted += process.poll() is None
            process.kill()
    for _ in range(KILLS):  # where chance did not do it: at an answer, which is in the middle of an attempt's work
        if half_made(service, tmp_path / "journal.db"):
            break
        with start(url, tmp_path) as process:
            kill_at_an_answer(process, service)
    with start(url, tmp_path) as process:
        process.communicate(timeout=400)
        assert process.returncode == 0, f"seed {seed}"
    assert interrupted > KILLS / 2, f"most were over before they were killed: seed {seed}"
    judged, voided = attempts_of(tmp_path / "journal.db")
    assert sorted(Counter(each.episode.task for each in judged).values()) == [TRIES] * len(TASKS.tasks)
    assert len({each.episode.episode_id for each in judged}) == len(judged), f"doubled: seed {seed}"
    assert voided, "no attempt was interrupted"
    sessions = {each.episode.session_id for each in voided}
    check_store(service, judged, sessions, seed)
    check_interrupted(service, judged, sessions, seed)


def test_kills_of_the_service_lose_and_double_nothing(make_service: Callable[..., Service], tmp_path: Path) -> None:
    port = free_port()
    service = make_service(learner__enabled=False, api__feedback__lookup_s=0.5).start(port=port)
    seed = int(os.environ.get("SEED", random.randrange(1 << 20)))
    rng = random.Random(seed)
    with start(service.url + "/v1", tmp_path) as process:
        for _ in range(KILLS_OF_THE_SERVICE):
            wanted = len(sessions_with_turns(service)) + rng.randint(1, 8)
            wait_for(partial(has_turns_of, service, wanted), 120, "answers")
            time.sleep(rng.uniform(0.0, 0.3))
            assert process.poll() is None, f"the rollouts were over before the service was killed: seed {seed}"
            service.kill()
            service.start(port=port)
        process.communicate(timeout=400)
        assert process.returncode == 0, f"seed {seed}"
    judged, voided = attempts_of(tmp_path / "journal.db")
    assert sorted(Counter(each.episode.task for each in judged).values()) == [TRIES] * len(TASKS.tasks)
    assert len({each.episode.episode_id for each in judged}) == len(judged), f"doubled: seed {seed}"
    assert {each.part for each in voided} == {"service"}, f"seed {seed}"
    check_store(service, judged, {each.episode.session_id for each in voided}, seed)


def attempts_of(journal: Path) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    with closing(sqlite3.connect(journal)) as database:
        found = [
            msgspec.json.decode(row[0], type=EpisodeResult) for row in database.execute("SELECT result FROM attempts")
        ]
        assert database.execute("SELECT count(*) FROM reports WHERE answer IS NULL").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM reports WHERE answer LIKE 'refused%'").fetchone() == (0,)
    return [each for each in found if each.reward is not None], [each for each in found if each.reward is None]


def half_made(service: Service, journal: Path) -> set[str]:
    """Return the sessions that have a turn, and whose attempt has no reward in the journal."""
    with closing(sqlite3.connect(journal)) as database:
        results = [
            msgspec.json.decode(row[0], type=EpisodeResult) for row in database.execute("SELECT result FROM attempts")
        ]
    return sessions_with_turns(service) - {each.episode.session_id for each in results if each.reward is not None}


def has_turns_of(service: Service, sessions: int) -> bool:
    return len(sessions_with_turns(service)) >= sessions


def sessions_with_turns(service: Service) -> set[str]:
    with closing(sqlite3.connect(service.directory / "store.db")) as database:
        return {session for (session,) in database.execute("SELECT DISTINCT session_id FROM turns")}


def check_store(service: Service, judged: list[EpisodeResult], voided: set[str], seed: int) -> None:
    """Hold what the service's store has to what the tests gave: each episode once, with its own value."""
    given = {each.episode.session_id: each.reward for each in judged}
    with closing(sqlite3.connect(service.directory / "store.db")) as database:

        def rewards() -> dict[str, float]:
            rows = database.execute(
                "SELECT session_id, value FROM rewards r WHERE revision ="
                " (SELECT max(revision) FROM rewards WHERE inference_id = r.inference_id)"
            )
            return {session: value for session, value in rows if session not in voided}

        def told() -> list[str]:
            rows = database.execute("SELECT session_id FROM outcomes WHERE name = 'task_reward'")
            return [session for (session,) in rows]

        wait_for(lambda: len(rewards()) >= len(given), 120, "every reward")
        assert rewards() == given, f"seed {seed}"
        wait_for(lambda: len(told()) >= len(given), 120, "every outcome")  # the writer may be behind the scorer
        assert Counter(told()) == Counter(given.keys()), f"seed {seed}"


def check_interrupted(service: Service, judged: list[EpisodeResult], voided: set[str], seed: int) -> None:
    """See that some were in the middle of their work, and that the service knows these for what they are."""
    unjudged = sessions_with_turns(service) - {each.episode.session_id for each in judged}
    assert unjudged, f"no attempt was interrupted in the middle of its work: seed {seed}"
    assert unjudged <= voided, f"seed {seed}"
    with closing(sqlite3.connect(service.directory / "store.db")) as database:

        def marked() -> set[str]:
            rows = database.execute("SELECT session_id FROM outcomes WHERE name = 'infrastructure_failure'")
            return {session for (session,) in rows}

        wait_for(lambda: unjudged <= marked(), what=f"word of those that were interrupted: seed {seed}")
