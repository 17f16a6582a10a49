"""The page of what happened."""
