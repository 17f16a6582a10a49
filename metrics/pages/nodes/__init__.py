"""The pages of nodes, and their charts."""
