"""Who loses places to whom: rights, candidates, the choice among them, and its trial."""
