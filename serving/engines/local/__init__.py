"""The engine in this process: torch, any Hugging Face causal LM, continuous batching, versions swapped in flight."""

from serving.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
