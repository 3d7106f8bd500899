"""The judge: a language model, behind any OpenAI-compatible endpoint, that says how good answers are. Optional."""

from scoring.judge.stage import Judge

__all__ = ["Judge"]
