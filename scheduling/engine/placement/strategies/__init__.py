"""The placement strategies, a module each."""
