"""Watching: monitors over the turns that are served, and alarms of what they find."""

from scoring.watching.stage import Watcher

__all__ = ["Watcher"]
