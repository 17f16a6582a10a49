"""The command line `kant`: jobs, quotas and nodes of a Kant over its REST API.

It runs on the machine of whoever uses it, so it needs Python 3.10 and nothing else, and imports
nothing of the server. Kant serves it as one executable file at `/cli/kant` (archive.py).
"""
