"""What rows tell of several clusters for a job that may run on any of them."""
