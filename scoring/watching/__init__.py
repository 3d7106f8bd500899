"""Watching: monitors over the turns that are served, and alarms about what they find."""

from scoring.watching.stage import MonitorStage

__all__ = ["MonitorStage"]
