"""Running jobs: what they hold, when they end, and which of them may be preempted."""
