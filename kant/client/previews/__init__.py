"""Previews: what a change of quotas or nodes would do to jobs."""
