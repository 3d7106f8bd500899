"""The shipped model in an engine of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from core.blobs import FsspecBlobs
from core.ids import base_ref
from core.settings import ServingSettings
from serving.engines.local import LocalEngine
from serving.weights.published import BlobWeights

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"


@contextmanager
def tiny_engine(directory: Path, **settings: Any) -> Iterator[LocalEngine]:
    torch.set_num_threads(1)
    weights = BlobWeights(FsspecBlobs(directory / "blobs"))
    anchor = weights.publish(base_ref(1), [TINY / "model.safetensors"], None)
    engine = LocalEngine(ServingSettings(**settings), TINY, weights, anchor)
    engine.start()
    yield engine
    engine.close()
