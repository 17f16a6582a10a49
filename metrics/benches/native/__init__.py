"""Pods created by others, against kube-scheduler. Part of `manage.py bench binds --against`."""
