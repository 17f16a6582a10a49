"""What a waiting job requests, in each way that it may start, and whether it ever could."""
