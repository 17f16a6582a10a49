"""What a sample of the recorder says of an instant, out of the rows of what was placed."""
