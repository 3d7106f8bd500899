"""Weights: how far an update moves them, what that costs, and what is kept of them."""

from typing import Final, Literal

from pydantic import Field, model_validator

from core.section import Section

JOURNAL_VERSIONS: Final = 8
"""The newest versions that the learner's journal keeps, as it may have to go on from any of them."""


class OptimizerSettings(Section):
    """AdamW."""

    learning_rate: float = Field(default=4e-4, gt=0)
    """AdamW's."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises to its value, after which it stays; again for a fresh optimizer."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's."""


class ComputeSettings(Section):
    precision: Literal["float32", "bfloat16"] = "float32"
    """The number format of matrix products. Weights that train, moments and log-probabilities are float32 in either."""
    published: Literal["float32", "bfloat16", "float16"] | None = None
    """The number format in which versions of whole weights are published, where it is narrower than that of the weights
    that train, which stay as they are. None: the format that the service's engines compute in."""
    micro_batch_tokens: int = Field(default=1024, ge=64)
    """Padded tokens in one forward pass; on a CPU, what fits its caches is fastest."""
    packed: bool = False
    """Whether sequences of different length share a row instead of being padded: for attention kernels that skip pairs
    of tokens from different sequences, on a GPU."""
    shared_prompts: bool = False
    """Whether the prompt that all sequences of an update begin with, such as a system prompt, is computed once for each
    micro-batch. Excludes `packed` and `gradient_checkpointing`; models that cannot are refused."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass, which costs a third of the time and saves memory."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """The peak of one device in `precision`, for the figure `mfu`; None: `mfu` is not reported."""

    @model_validator(mode="after")
    def _goes_together(self) -> "ComputeSettings":
        for other in ("packed", "gradient_checkpointing"):
            if self.shared_prompts and getattr(self, other):
                raise ValueError(f"shared_prompts and {other} exclude each other")
        return self


class LoraSettings(Section):
    rank: int = Field(default=0, ge=0)
    """0: all weights train. Else adapters of that rank beside the model's matrices (LoRA): versions of megabytes, since
    they alone are published, and one copy of the model in memory, in the precision of its files. They learn at a higher
    `optimizer.learning_rate`."""
    alpha: float = Field(default=32.0, gt=0)
    """The scale of adapters: their product is multiplied by `alpha` / `rank`."""
    targets: tuple[str, ...] = ()
    """Names of the modules that get adapters, `q_proj` for example; none: all linear ones but the output matrix."""


class CheckpointSettings(Section):
    every_s: float = Field(default=60.0, ge=0)
    """Seconds from one checkpoint to the next. It is written beside the training; what was learned since is learned
    again after a crash, to the same bits, so this bounds how long that takes. 0: after every version."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept besides the one from which the live version can be made, and those of the past."""
    past_gb: float = Field(default=2.0, ge=0)
    """Room for checkpoints of the past, from which earlier versions are made again where their weights are gone: the
    older they are, the fewer stay. 0: earlier versions are made again from the given model."""
    disk_gb: float | None = Field(default=None, gt=0)
    """Most that checkpoints may take of the disk: beyond it the oldest go, down to the newest whole one. None: `keep`
    and `past_gb` say."""
    max_lead: int = Field(default=2, ge=1)
    """Most versions ahead of the newest that serves anybody, live or as a canary; then turns accumulate."""
