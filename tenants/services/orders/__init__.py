"""Quota changes made at a given time, taken back at a given time, or waiting for approval."""
