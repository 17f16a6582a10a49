"""How a cluster stands now: who holds it, and all that its scheduler is told."""
