"""The quota matrix, one quota of it, and taking a change back."""
