"""`manage.py simulate`: what goes in, what comes out, and its files."""
