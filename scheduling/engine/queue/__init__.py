"""Waiting and running jobs, and the one order in which Kant asks the waiting ones."""
