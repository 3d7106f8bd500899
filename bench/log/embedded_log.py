"""Durable turns per second of the embedded log, against a plain loop that commits the same rows in batches of 32.

    python -m bench embedded_log

Both end in the same place: rows of 2 KB in a SQLite file, WAL, synchronous=FULL, one fsync for each commit. The loop
gets its rows as bytes; the log gets events, encodes them and tells each appender when its own is durable. Appenders run
on uvloop and with the collector frozen, as in the service.
"""

import asyncio
import gc
import sqlite3
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import uvloop

from bench.table import Row, interleave, report
from core.codec import encode
from core.events import Completion, LogprobSpace, Sampling, Topic, VersionSpan
from core.ids import GroupId, Namespace, base_ref, new_inference_id, new_session_id
from ingest.sqlite.log import SqliteEventLog

ROUNDS = 7
RECORDS = 8000
ALONE_RECORDS = 1500
BATCH = 32
APPENDERS = 32
TOKENS = 96
GOAL = 0.6


def turn() -> Completion:
    """Return a turn like the demo's: about 2 KB once encoded."""
    session_id = new_session_id()
    return Completion(
        inference_id=new_inference_id(session_id),
        session_id=session_id,
        turn_index=0,
        parent_id=None,
        group_id=GroupId("0190f3c2-0000-7000-8000-000000000000"),
        namespace=Namespace("default"),
        user_id=None,
        workload="write",
        purpose="turn",
        received_at=datetime.now(UTC),
        messages=({"role": "user", "content": "[repo] write total(prices): the sum of all prices that are positive"},),
        sampling=Sampling(max_tokens=TOKENS),
        prompt_token_ids=tuple(range(100, 100 + TOKENS)),
        token_ids=tuple(range(200, 200 + TOKENS)),
        logprobs=tuple(-0.01 * index for index in range(TOKENS)),
        logprob_space=LogprobSpace(temperature=1.0),
        trainable=True,
        policy="onward-tiny",
        policy_versions=(VersionSpan(start=0, end=TOKENS, version=base_ref(1)),),
        tokenizer_digest="0" * 32,
        renderer="chatml",
        finish_reason="stop",
        text="def total(prices: list[int]) -> int: return sum(p for p in prices if p > 0)",
        delivered_tokens=TOKENS,
        latency_ms=120.0,
    )


def log_rate(turns: list[Completion], appenders: int) -> float:
    """Return turns per second, each awaited until it is durable."""

    async def run(log: SqliteEventLog) -> float:
        waiting = iter(turns)

        async def appender() -> None:
            for event in waiting:
                await log.append(Topic.TURNS, event)

        start = time.perf_counter()
        await asyncio.gather(*(appender() for _ in range(appenders)))
        return len(turns) / (time.perf_counter() - start)

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        log = SqliteEventLog(Path(directory) / "log.db", 4, 0.02)
        rate = uvloop.run(run(log))
        log.close()
    return rate


def plain_rate(raws: list[bytes], batch: int) -> float:
    """Return rows per second of a loop that does nothing but commit them."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        connection = sqlite3.connect(Path(directory) / "plain.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, raw BLOB NOT NULL)")
        start = time.perf_counter()
        for first in range(0, len(raws), batch):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO records (raw) VALUES (?)", [(raw,) for raw in raws[first : first + batch]]
            )
            connection.execute("COMMIT")
        rate = len(raws) / (time.perf_counter() - start)
        connection.close()
    return rate


def main() -> None:
    turns = [turn() for _ in range(RECORDS)]
    raws = [encode(event) for event in turns]
    gc.freeze()
    contenders: dict[str, Callable[[], float]] = {
        "together": partial(log_rate, turns, APPENDERS),
        "plain together": partial(plain_rate, raws, BATCH),
        "alone": partial(log_rate, turns[:ALONE_RECORDS], 1),
        "plain alone": partial(plain_rate, raws[:ALONE_RECORDS], 1),
    }
    rates = interleave(contenders, ROUNDS)
    together, floor = rates["together"], rates["plain together"]
    alone, floor_alone = rates["alone"], rates["plain alone"]
    plain = "plain SQLite loop, commits of"
    report(
        "embedded_log",
        [
            Row("record size", sum(map(len, raws)) / len(raws), "bytes"),
            Row("plain loop, commits of 32", floor, "rows/s"),
            Row("plain loop, commits of 1", floor_alone, "rows/s"),
            Row("1 appender", alone, "turns/s", f"{plain} 1", alone / floor_alone),
            Row("1 appender", alone, "turns/s", f"{plain} {BATCH}", alone / floor),
            Row.at_least(f"{APPENDERS} appenders", together, "turns/s", f"{plain} {BATCH}", together / floor, GOAL),
        ],
    )


if __name__ == "__main__":
    main()
