"""Reads about jobs, quotas and clusters for pages, REST and services."""
