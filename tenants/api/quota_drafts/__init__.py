"""REST for quota changes that are prepared, or take effect later."""
