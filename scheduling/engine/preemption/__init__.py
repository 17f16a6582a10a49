"""Preemption: rights, candidates, the choice among these, and its trial."""
