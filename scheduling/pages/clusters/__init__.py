"""What operators say of a cluster on pages."""
