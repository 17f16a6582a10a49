"""Parsing of flag values."""
