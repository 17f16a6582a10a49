"""Dynamic resource allocation (DRA): devices, claims for them, and which claim gets which
devices."""
