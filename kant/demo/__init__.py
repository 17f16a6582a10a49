"""The demo: an organisation, and accounts that everybody knows."""
