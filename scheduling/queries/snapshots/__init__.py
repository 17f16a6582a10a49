"""Snapshots: files with all that a scheduler knows, from which the same is decided elsewhere."""
