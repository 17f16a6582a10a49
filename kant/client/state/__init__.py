"""The current state of a cluster."""
