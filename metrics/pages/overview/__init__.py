"""The first page of engineers and tenant admins."""
