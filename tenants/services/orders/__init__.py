"""Quota changes that are made at a time, taken back at a time, or wait for approval."""
