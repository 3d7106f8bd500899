"""The precision in which an update computes."""

from contextlib import AbstractContextManager, nullcontext

import torch

from core.settings import LearnerSettings


def computing_in(settings: LearnerSettings) -> AbstractContextManager[object]:
    """Return a context for matrix products in low precision, over float32 weights; log-probabilities stay float32."""
    if settings.compute.precision == "float32":
        return nullcontext()
    return torch.autocast(settings.device.split(":")[0], dtype=torch.bfloat16)
