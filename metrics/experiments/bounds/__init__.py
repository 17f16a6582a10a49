"""Bounds on figures that hold for any scheduler."""
