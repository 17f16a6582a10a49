"""The pages of replays: the form that asks for one, and what came of it."""
