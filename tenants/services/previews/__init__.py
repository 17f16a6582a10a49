"""What a change was told to do before it was made, and what happened in the hour after."""
