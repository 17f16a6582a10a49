"""What a change was predicted to do, and what happened in the hour after."""
