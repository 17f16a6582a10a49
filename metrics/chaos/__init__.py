"""Faults in a production shape under load, and what has to hold all the same."""
