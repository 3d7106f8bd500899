"""The building of what keeps the log, and carries it elsewhere."""
