"""What Prometheus is told: one page, its families of metrics by subject."""
