"""What a job that cannot start means for the jobs behind it: policies and reservations."""
