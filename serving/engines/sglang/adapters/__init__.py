"""Many policies on one SGLang server: the given model once, and an adapter by name for each version beside it."""
