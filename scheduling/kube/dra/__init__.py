"""Dynamic resource allocation (DRA): devices, claims for them, and their allocation."""
