"""What bounds a figure, whatever the scheduler does."""
