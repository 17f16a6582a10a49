"""What would be done to jobs, before it is done: of quotas, of nodes."""
