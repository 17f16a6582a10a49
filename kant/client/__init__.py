"""The command line `kant`: jobs, quotas and nodes of a Kant over its REST API.

It runs on its users' machines, so it needs only Python 3.10 and imports nothing of the server. Kant
serves it as one executable file at `/cli/kant` (archive.py).
"""
