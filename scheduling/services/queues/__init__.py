"""Queues of tenants: who may enter them, and with what."""
