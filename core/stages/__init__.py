"""Stages, and the one runner of them all."""
