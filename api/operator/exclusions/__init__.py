"""Exclusions from learning, as operators foresee and order them."""
