"""`manage.py simulate`: its inputs, its results and its files."""
