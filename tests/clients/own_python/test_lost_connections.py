"""Feedback of the Python client while programs die: nothing is lost, nothing counts twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from api_harness import MODEL, WAIT_S, wait_for
from mortal_service import MortalService
from onward_client import Onward

ROOT = Path(__file__).resolve().parents[3]
FOREVER = """
import itertools, sys
from onward_client import Onward

url, queue, inference_id = sys.argv[1:]
onward = Onward(url, queue=queue)
for number in itertools.count():
    print(onward.feedback(inference_id, "comment", f"comment {number}"), flush=True)
"""


def an_inference(service: MortalService) -> str:
    body = {"model": MODEL, "prompt": "x"}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=WAIT_S)
    return answer.headers["x-onward-inference-id"]


def feedback_forever(service: MortalService, queue: Path, inference_id: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", FOREVER, service.url, str(queue), inference_id],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients" / "python")},
    )


def test_a_service_that_is_killed_while_feedback_comes(mortal: MortalService, tmp_path: Path) -> None:
    inference_id = an_inference(mortal)
    given = []
    with Onward(mortal.url, queue=tmp_path / "queue.db", close_timeout_s=WAIT_S) as onward:
        for number in range(60):
            given.append(onward.feedback(inference_id, "comment", f"comment {number}"))
            if number == 20:
                wait_for(mortal.outcomes, "the first outcome")
                mortal.kill()
        wait_for(lambda: onward.problem, "a try that failed")
        assert onward.queued > 0
        mortal.start()
        assert onward.flush(WAIT_S) == 0
        assert onward.refused() == []
    wait_for(lambda: len(mortal.outcomes()) >= len(given))
    assert sorted(outcome_id for outcome_id, _ in mortal.outcomes()) == sorted(given)


def test_a_client_that_is_killed_with_feedback_in_its_queue(mortal: MortalService, tmp_path: Path) -> None:
    """What `feedback` returned for is told by the next client that opens the queue, once."""
    inference_id, queue = an_inference(mortal), tmp_path / "queue.db"
    client = feedback_forever(mortal, queue, inference_id)
    assert client.stdout is not None
    given = [client.stdout.readline().strip() for _ in range(30)]
    mortal.kill()
    given += [client.stdout.readline().strip() for _ in range(30)]
    client.send_signal(signal.SIGKILL)
    with client:
        given += client.stdout.read().split()  # `communicate` would lose what `readline` has read ahead
    mortal.start()
    with Onward(mortal.url, queue=queue, close_timeout_s=WAIT_S) as onward:
        begun_s = time.monotonic()
        assert onward.flush(WAIT_S) == 0, f"{time.monotonic() - begun_s:.0f} s: {onward.problem}"
    wait_for(lambda: len(mortal.outcomes()) >= len(given))
    told = [outcome_id for outcome_id, _ in mortal.outcomes()]
    assert set(given) <= set(told)
    assert len(told) - len(given) <= 1, "one may have been queued and not yet printed"


def test_two_clients_may_share_a_queue(mortal: MortalService, tmp_path: Path) -> None:
    inference_id, queue = an_inference(mortal), tmp_path / "queue.db"
    with Onward(mortal.url, queue=queue) as one, Onward(mortal.url, queue=queue) as other:
        given = [client.feedback(inference_id, "comment", str(n)) for n in range(20) for client in (one, other)]
        assert one.flush(WAIT_S) == 0
    wait_for(lambda: len(mortal.outcomes()) >= len(given))
    assert sorted(outcome_id for outcome_id, _ in mortal.outcomes()) == sorted(given)
