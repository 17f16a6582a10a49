"""The tree of tenants, and one tenant with its members and limits."""
