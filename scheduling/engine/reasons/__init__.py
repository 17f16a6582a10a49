"""Why jobs wait, and who is told when."""
