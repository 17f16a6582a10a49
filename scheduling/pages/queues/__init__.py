"""The queues of tenants, one queue, its settings, and the global queue of a cluster."""
