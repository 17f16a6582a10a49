"""The page of GPU-hours."""
