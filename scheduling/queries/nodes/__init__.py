"""Reads about nodes: the orders for them, and what a change of them would do."""
