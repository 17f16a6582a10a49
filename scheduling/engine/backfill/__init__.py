"""What a blocked job means for the jobs behind it: queueing policies and reservations."""
