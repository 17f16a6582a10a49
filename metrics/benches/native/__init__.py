"""Pods that others make, beside kube-scheduler. Part of `manage.py bench binds --against`."""
