"""The cost of a broker that writes each record to its disk before it acknowledges it.

    make services && python -m bench kafka_flush

The same appends by the same log, to topics that flush and to topics that do not, in turns."""

import statistics
from contextlib import ExitStack
from functools import partial

from bench.log.kafka_ingest import PARTITIONS, Run, append
from bench.log.traffic import turns
from bench.services import log_on, topics
from bench.table import Row, interleave, report

ROUNDS = 5
APPENDERS = {1: 200, 32: 4000}  # to turns of a round


def main() -> None:
    events = list(turns(max(APPENDERS.values())))
    rows: list[Row] = []
    with ExitStack() as stack:
        logs = {
            name: stack.enter_context(log_on(stack.enter_context(topics(PARTITIONS, flush=flush))))
            for name, flush in {"flushed": True, "from memory": False}.items()
        }
        for appenders, count in APPENDERS.items():
            runs = {name: Run(partial(append, log, events[:count], appenders)) for name, log in logs.items()}
            rates = interleave(runs, ROUNDS)
            what = "1 appender" if appenders == 1 else f"{appenders} appenders"
            ratio = rates["flushed"] / rates["from memory"]
            rows.append(Row(f"{what}, flushed", rates["flushed"], "turns/s", "acknowledged from memory", ratio))
            for label, name in (("p50_ms", "p50"), ("p99_ms", "p99")):
                value, other = (statistics.median(getattr(runs[each], label)) for each in ("flushed", "from memory"))
                rows.append(Row(f"{what}, flushed: {name}", value, "ms", f"from memory {other:.2f} ms", value / other))
    report("kafka_flush", rows)


if __name__ == "__main__":
    main()
