"""The policy of a cluster: as a document, and as single settings."""
