"""Choose one of several clusters for a job, and decide when it moves (docs/decisions/0075)."""
