"""Snapshots: all that a scheduler is told, in a file from which the same is decided elsewhere."""
