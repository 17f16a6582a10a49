"""The current state of a cluster: who holds it, and all that its scheduler is told."""
