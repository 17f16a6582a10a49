"""Every write of webhooks as one named function and transaction."""
