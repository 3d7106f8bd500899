"""Which version serves: candidates through the gate, and back again when an operator says so."""

from serving.releases.anchor import CLUSTER, ensure_anchor
from serving.releases.controller import ReleaseController
from serving.releases.timing import LoopTimer

__all__ = ["CLUSTER", "LoopTimer", "ReleaseController", "ensure_anchor"]
