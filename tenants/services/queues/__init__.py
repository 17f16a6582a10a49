"""Queues of tenants: their settings, changing them and reverting changes."""
