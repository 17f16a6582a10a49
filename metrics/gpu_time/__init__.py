"""GPU time by tenant and user: measured, stored day by day, and read."""
