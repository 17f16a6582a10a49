"""Take in what changed, grow running elastic gangs, and move pods together."""
