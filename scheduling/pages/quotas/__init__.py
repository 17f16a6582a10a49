"""The quota matrix, one quota, and reverting a change."""
