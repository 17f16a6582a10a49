"""The placement strategies, one module each."""
