"""Reads about queues."""
