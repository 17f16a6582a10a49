"""Changing the policy of a cluster, and taking a change back."""
