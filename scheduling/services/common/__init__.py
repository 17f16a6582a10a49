"""What several services use."""
