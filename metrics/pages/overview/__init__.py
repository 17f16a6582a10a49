"""The home page of engineers and tenant admins."""
