"""Settings of a cluster that operators make on pages."""
