"""The blobs that are published beside a version's weights, and go when these go."""

from core.ids import PolicyRef


def probe_path(version: PolicyRef) -> str:
    return f"probes/{version.padded}.msgpack"


def memory_path(version: PolicyRef) -> str:
    """Return the path of what the version's learner knew beside the weights."""
    return f"memories/{version.padded}.pt"


def paths_beside(version: PolicyRef) -> tuple[str, ...]:
    return probe_path(version), memory_path(version)
