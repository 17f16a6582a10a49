"""Which cluster a job goes to that does not name one, and when it moves on (decisions/0075)."""
