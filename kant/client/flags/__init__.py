"""How the texts of flags are read."""
