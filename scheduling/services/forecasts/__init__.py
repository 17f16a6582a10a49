"""Start estimates of waiting jobs: learned from rows, worked out by a process, written to rows."""
