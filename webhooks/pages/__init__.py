"""The pages of webhooks: the list, one with its deliveries, its form."""
