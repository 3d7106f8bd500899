"""Backups: log, store, blobs and directory at one point, in files that are the same in both modes."""
