"""GPU activity as measured by Prometheus (docs/decisions/0092)."""
