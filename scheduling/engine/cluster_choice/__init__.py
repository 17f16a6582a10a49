"""Which of several clusters a job goes to, and when it moves on (docs/decisions/0075)."""
