"""The time to the first token and the requests per second that a service adds to or takes from SGLang.

    python -m bench sglang_overhead [--no-litellm]

`onward run`, every turn logged durably, is compared with the same SGLang server asked directly, and with the LiteLLM
proxy before it. Directly means two ways: `/generate` with the same token ids and log-probabilities (what the service
itself asks for), and SGLang's own `/v1/chat/completions` with the same messages. Short prompts, 16 tokens, streams;
all take turns within one run, and each figure is the median over the rounds of a round's own difference or ratio."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.api.api_overhead import ROOT, Server, ensure_litellm, free_port, litellm
from bench.api.api_servers import MODEL
from bench.engines.sglang_world import (
    PYTHON,
    chat,
    generate,
    port_of,
    ready_url,
    require_sglang,
    service,
    sglang_servers,
    wait_for,
)
from bench.engines.stream_load import StreamedAnswer, Target, streaming
from bench.table import Row, report

ROUNDS = 7
SECONDS = 4.0
CLIENTS = (1, 8)
MAX_TOKENS = 16
SETTINGS = f"""
[serving]
engine = "sglang"
model_name = "{MODEL}"
[serving.sglang]
python = "{PYTHON}"
urls = ["URL"]
[learner]
enabled = false
"""


@dataclass(frozen=True)
class Figures:
    """The figures of one contender in one round."""

    p50_ms: float
    p99_ms: float
    requests_per_s: float

    @classmethod
    def of(cls, answers: list[StreamedAnswer], seconds: float) -> "Figures":
        p50_ms, p99_ms = np.percentile([answer.first_token_ms for answer in answers], [50, 99])
        return cls(float(p50_ms), float(p99_ms), len(answers) / seconds)


Rounds = Mapping[str, list[Figures]]


def measure(target: Target, clients: int) -> Figures:
    with streaming(target, clients) as answers:
        began_s = time.monotonic()
        time.sleep(SECONDS)
        over_s = time.monotonic()
    done = [answer for answer in answers if began_s <= answer.arrivals_s[-1] <= over_s]
    if not done:
        raise SystemExit(f"{target.path} at port {target.port} ended no answer within {SECONDS} s")
    return Figures.of(done, over_s - began_s)


def rounds_of(contenders: Mapping[str, Target], clients: int) -> Rounds:
    """Measure contenders in rounds; the first one changes every round."""
    names, figures = list(contenders), {name: list[Figures]() for name in contenders}
    for turn in range(ROUNDS):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            figures[name].append(measure(contenders[name], clients))
    return figures


def rows_of(rounds: Rounds, clients: int) -> Iterator[Row]:
    for name, figures in rounds.items():
        rate = statistics.median(round.requests_per_s for round in figures)
        yield Row(f"{name}: to the first token, p50, {_said(clients)}", _median(figures, lambda f: f.p50_ms), "ms")
        yield Row(f"{name}: to the first token, p99, {_said(clients)}", _median(figures, lambda f: f.p99_ms), "ms")
        yield Row(f"{name}, {_said(clients)}", rate, "requests/s")
    for direct in ("/generate", "/v1/chat/completions"):
        yield from _rows_against(rounds, "onward", direct, clients)
    if "LiteLLM" in rounds:
        yield from _rows_against(rounds, "LiteLLM", "/v1/chat/completions", clients)
        yield from _rows_against(rounds, "onward", "LiteLLM", clients)


def _rows_against(rounds: Rounds, name: str, other: str, clients: int) -> Iterator[Row]:
    pairs = list(zip(rounds[name], rounds[other], strict=True))
    against = other if other == "LiteLLM" else f"SGLang's {other}"
    for label, read in (("p50", lambda f: f.p50_ms), ("p99", lambda f: f.p99_ms)):
        added_ms = statistics.median(read(one) - read(two) for one, two in pairs)
        ratio = statistics.median(read(one) / read(two) for one, two in pairs)
        yield Row(f"{name} adds to the first token, {label}, {_said(clients)}", added_ms, "ms", against, ratio)
    ratio = statistics.median(one.requests_per_s / two.requests_per_s for one, two in pairs)
    rate = statistics.median(one.requests_per_s for one, _ in pairs)
    yield Row(
        f"{name}, every turn durable, {_said(clients)}" if name == "onward" else f"{name}, {_said(clients)}",
        rate,
        "requests/s",
        against,
        ratio,
    )


def _median(figures: list[Figures], read: Callable[[Figures], float]) -> float:
    return statistics.median(map(read, figures))


def _said(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def main() -> None:
    require_sglang()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-sglang-")))
        (server,) = stack.enter_context(sglang_servers(directory, "sglang"))
        stack.enter_context(service(directory / "service", SETTINGS.replace("URL", server.url)))
        url = wait_for(lambda: ready_url(directory / "service"), "the service")
        direct = port_of(server.url)
        contenders = {
            "/generate": generate(direct, MAX_TOKENS),
            "/v1/chat/completions": chat(direct, MAX_TOKENS),
            "onward": chat(port_of(url), MAX_TOKENS),
        }
        if "--no-litellm" not in sys.argv:
            assert server.pid is not None
            proxy = litellm(ensure_litellm(), Server(direct, server.pid), directory, free_port())
            contenders["LiteLLM"] = chat(stack.enter_context(proxy).port, MAX_TOKENS)
        rows = [row for clients in CLIENTS for row in rows_of(rounds_of(contenders, clients), clients)]
    report("sglang_overhead", rows)


if __name__ == "__main__":
    main()
