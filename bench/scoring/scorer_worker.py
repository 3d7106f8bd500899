"""A scorer for `bench.scoring.scorer`, in a process of its own as in production.

    python -m bench scorer_worker KAFKA POSTGRES

It takes the settings as JSON and scores. A line on its standard input makes it pause and print how many partitions
it owns and the seconds of CPU it took since it started or went on; the next line makes it go on, the end of the
input ends it."""

import gc
import sys
import threading
import time

from bench.services import APPLICATION, takes_appends, wait_for
from core.clock import SystemClock
from core.reward_spec import load_reward_spec
from core.settings import KafkaSettings, PostgresSettings, ScoringSettings
from core.stages.rounds import Rounds
from core.store import open_postgres
from ingest.kafka.log import KafkaEventLog
from onward.directory.layout import SHIPPED_REWARDS
from scoring.stage import Scorer

STEP_S = 0.2  # as the service's threads


def main() -> None:
    log = KafkaEventLog(KafkaSettings.model_validate_json(sys.argv[1]))
    wait_for(lambda: takes_appends(log))
    store = open_postgres(PostgresSettings.model_validate_json(sys.argv[2]), APPLICATION)
    scorer = Scorer(log, store, load_reward_spec(SHIPPED_REWARDS), ScoringSettings(), SystemClock())
    rounds = Rounds("scorer", scorer)
    told, over = threading.Semaphore(0), threading.Event()
    threading.Thread(target=listen, args=(told, over), daemon=True).start()
    gc.freeze()
    while not over.is_set():
        cpu_s = time.process_time()
        while not told.acquire(blocking=False):
            rounds.step(STEP_S)
        print(len(scorer._member.offsets), time.process_time() - cpu_s, flush=True)
        told.acquire()
    scorer.close()
    log.close()


def listen(told: threading.Semaphore, over: threading.Event) -> None:
    for _ in sys.stdin:
        told.release()
    over.set()
    told.release(2)  # whatever is waited for


if __name__ == "__main__":
    main()
