"""Queries over the newest rows, bounded by count."""
