"""Weights as differences: what changed between two checkpoints, lossless, whatever their dtype."""
