"""What a session remembers, and how it is read from rows."""
