"""What the rows of placements and jobs say about an instant."""
