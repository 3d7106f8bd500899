"""Alerts: operators are told of alarms that open and close."""
