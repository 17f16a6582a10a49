"""REST for quota changes that are prepared, or happen later."""
