"""Submitting, changing and cancelling jobs."""
