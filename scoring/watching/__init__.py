"""Watching: monitors over the turns that are served, and alarms about what they find."""

from scoring.watching.stage import Watcher

__all__ = ["Watcher"]
