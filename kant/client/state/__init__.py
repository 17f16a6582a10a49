"""How a cluster stands now."""
