"""REST for webhooks and their deliveries."""
