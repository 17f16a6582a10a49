"""What is known of running jobs: what they hold, when they end, who of them may be preempted."""
