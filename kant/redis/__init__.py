"""Kant's use of Redis: the broker of its messages and the cache shared by its processes."""
