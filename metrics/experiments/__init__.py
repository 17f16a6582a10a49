"""Studies that `manage.py experiment NAME` runs."""
