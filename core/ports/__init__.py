"""The ports: what a stage may ask of the world. Adapters live in the stages; `onward.wiring` chooses among them.

Each port is as large as its harder adapter needs (Kafka, Postgres, Redis, SGLang, S3). `tests/contracts` holds one
suite per port, run over every implementation.
"""

from core.events import TopicPartition
from core.ports.clock import Clock
from core.ports.drafts import Drafts
from core.ports.engine import Engine
from core.ports.live_state import (
    REWARDS,
    Allowance,
    Announcer,
    Bucket,
    Changes,
    CountWindow,
    LiveState,
    RecentCounts,
    TokenChain,
)
from core.ports.log import Consumer, EventLog, LogReader, Position, RebalanceListener, Record
from core.ports.model import GenerateRequest, OutputDelta, OutputParser, Policy, Renderer, TokenChunk, Traffic
from core.ports.store import Store
from core.ports.weights import AdapterConfig, Blobs, Opened, Weights, WeightsRef

__all__ = [
    "REWARDS",
    "AdapterConfig",
    "Allowance",
    "Announcer",
    "Blobs",
    "Bucket",
    "Changes",
    "Clock",
    "Consumer",
    "CountWindow",
    "Drafts",
    "Engine",
    "EventLog",
    "GenerateRequest",
    "LiveState",
    "LogReader",
    "Opened",
    "OutputDelta",
    "OutputParser",
    "Policy",
    "Position",
    "RebalanceListener",
    "RecentCounts",
    "Record",
    "Renderer",
    "Store",
    "TokenChain",
    "TokenChunk",
    "TopicPartition",
    "Traffic",
    "Weights",
    "WeightsRef",
]
