"""Injecting faults into a production setup under load, and what must hold nevertheless."""
