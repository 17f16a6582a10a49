"""The Prometheus page, with its families of metrics by subject."""
