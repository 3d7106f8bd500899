"""Suites: mined from sessions, and what versions were compared with them."""
