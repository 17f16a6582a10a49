"""What Kant has of Redis: the broker of its messages and the cache that its processes share."""
