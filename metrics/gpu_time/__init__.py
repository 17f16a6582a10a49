"""GPU time by tenant and user: measured, written day by day, and read."""
