"""The commands about quota changes that are drafted or happen later."""
