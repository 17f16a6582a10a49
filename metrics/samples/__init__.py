"""What is said of an instant, out of the rows of what was placed and of who waited."""
