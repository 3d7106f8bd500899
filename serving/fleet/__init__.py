"""Several engines behind one `core.ports.Policy`: who is there, who gets which request, and what if one is lost."""

from serving.fleet.policy import FleetPolicy
from serving.fleet.remote import RemoteEngines
from serving.fleet.view import FleetView

__all__ = ["FleetPolicy", "FleetView", "RemoteEngines"]
