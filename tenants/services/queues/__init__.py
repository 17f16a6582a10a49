"""Queues of tenants: what they say, changing and reverting that."""
