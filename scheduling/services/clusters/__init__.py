"""Adding and changing clusters, and whose pods they take."""
