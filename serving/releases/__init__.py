"""Which version serves: candidates through the gate, and back again when an operator says so."""

from core.fleet import CLUSTER
from serving.releases.anchor import ensure_anchor
from serving.releases.controller import ReleaseController
from serving.releases.timing import LoopTimer
from serving.releases.traffic import StoreTraffic

__all__ = ["CLUSTER", "LoopTimer", "ReleaseController", "StoreTraffic", "ensure_anchor"]
