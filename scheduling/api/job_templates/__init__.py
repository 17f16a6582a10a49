"""REST for templates: jobs that tenants keep under a name."""
