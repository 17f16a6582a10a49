"""Divide a cluster between several schedulers (docs/decisions/0003-shards.md)."""
