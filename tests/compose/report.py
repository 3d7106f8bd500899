"""A report of what a stack's store, log and manifests hold of its users' turns and outcomes.

Runs in a container of the stack, with its settings; reads {"inference_ids", "outcome_ids"} and writes one line of
JSON."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

from sqlalchemy import func, select

from core.errors import LogUnavailable
from core.events import Topic
from core.ports import EventLog, Record
from core.records.whole_log import read_whole
from core.store.database import tables
from core.store.work import View
from onward.replays.proof import lineage_of, prove_exactly_once
from onward.wiring.foundation import open_foundation

CONNECT_S = 60.0


def main() -> None:
    asked = json.load(sys.stdin)
    foundation = open_foundation(Path("/data"))
    inference_ids = asked["inference_ids"]
    with foundation.store.read() as connection:
        stored = View(connection).turns.get_many(inference_ids)
        outcomes = View(connection).outcomes.of_turns(inference_ids)
        rewarded = View(connection).rewards.of_turns(inference_ids)
        versions = View(connection).policies.newest(1)
        counts = {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in (("turns", tables.turns), ("outcomes", tables.outcomes), ("rewards", tables.rewards))
        }
    newest = versions[0][0].version
    names = Counter(outcome.outcome_id for outcome in outcomes)
    told = {outcome.inference_id for outcome in outcomes if outcome.outcome_id in asked["outcome_ids"]}
    in_log = read_turns(foundation.log)
    result = {
        "missing_turns": sorted(set(inference_ids) - set(stored)),
        "missing_outcomes": sorted(set(asked["outcome_ids"]) - set(names)),
        "unrewarded": sorted(told - {reward.inference_id for reward in rewarded}),
        "twice": [name for name, count in names.items() if count > 1],
        "stored": counts,
        "log_records": len(in_log),
        "newest": newest.version,
        "updates": prove_exactly_once(lineage_of(foundation, newest)),
    }
    foundation.close()
    sys.stdout.write(json.dumps(result) + "\n")


def read_turns(log: EventLog) -> list[Record]:
    """Return all records of the turns' topic, once the log is connected."""
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return [record for batch in read_whole(log, Topic.TURNS) for record in batch]
        except LogUnavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


main()
