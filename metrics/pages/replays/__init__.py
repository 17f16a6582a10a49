"""The pages of replays: the form that requests one, and its result."""
