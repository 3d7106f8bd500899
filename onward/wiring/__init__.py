"""The composition root: the only place that knows which adapter stands behind which port.

Heavy imports (torch) happen inside the functions that need them, so that `onward --help` and the light stages stay
light.
"""

from onward.wiring.engines import Child, build_host, publish_anchor
from onward.wiring.foundation import Foundation, Stage, open_foundation
from onward.wiring.service import Service, build_app, build_learner, build_releases, build_service

__all__ = [
    "Child",
    "Foundation",
    "Service",
    "Stage",
    "build_app",
    "build_host",
    "build_learner",
    "build_releases",
    "build_service",
    "open_foundation",
    "publish_anchor",
]
