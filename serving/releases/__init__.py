"""The choice of the version that serves: candidates pass the gate, and an operator or a guard can go back."""

from serving.releases.anchor import ensure_anchor, ensure_first
from serving.releases.canaries.timing import LoopTimer
from serving.releases.canaries.traffic import StoreTraffic
from serving.releases.controller import ReleaseController

__all__ = ["LoopTimer", "ReleaseController", "StoreTraffic", "ensure_anchor", "ensure_first"]
