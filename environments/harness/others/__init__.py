"""Harnesses of others, which take the place of ours in a rollout."""
