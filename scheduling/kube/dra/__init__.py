"""Dynamic resource allocation: devices, claims for them, and which claim gets which devices."""
