"""Requests to an API server about one pod: one file per action."""
