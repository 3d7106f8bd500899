"""The check of a commit, in parts with budgets: what `.ci/run` and `make deep` start."""
