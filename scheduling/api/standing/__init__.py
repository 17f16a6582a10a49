"""REST for the current state: who holds GPUs, who lends to whom, why jobs wait."""
