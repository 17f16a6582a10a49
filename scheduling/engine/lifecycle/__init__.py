"""Taking in what changed, growing gangs that run, moving pods together."""
