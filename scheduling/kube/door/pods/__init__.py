"""What is asked of an API server about one pod: a file for each action."""
