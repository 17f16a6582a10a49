"""The pages of jobs, quotas and tenants."""
