"""What rows say of several clusters, for a job that may run on any of them."""
