"""Suites made of what users did: drafts that are mined from sessions, and reviewed by a person."""
