"""Erasure: what a user said is removed from all that keeps it, place by place."""
