"""The engine's step in one call, compiled where it runs."""
