"""The table of jobs, one job with its logs, and the form that submits."""
