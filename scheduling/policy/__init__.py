"""The policy of a cluster as a document, and its single settings."""
