"""The demo: an organisation, and accounts with known passwords."""
