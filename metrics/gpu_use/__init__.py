"""How busy GPUs are, as a Prometheus tells it (docs/decisions/0092)."""
