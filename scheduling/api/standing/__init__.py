"""REST for how things stand now: who holds GPUs, who lends to whom, why what waits waits."""
