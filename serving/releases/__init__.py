"""Which version serves: candidates through the gate, and back again when an operator says so."""

from core.operations.fleet import CLUSTER
from serving.releases.anchor import ensure_anchor
from serving.releases.canaries.timing import LoopTimer
from serving.releases.canaries.traffic import StoreTraffic
from serving.releases.controller import ReleaseController

__all__ = ["CLUSTER", "LoopTimer", "ReleaseController", "StoreTraffic", "ensure_anchor"]
