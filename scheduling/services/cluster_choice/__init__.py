"""Which cluster a job goes to if it names none, and when it moves on (decisions/0075)."""
