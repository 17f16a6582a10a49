"""The organisation as one document: what `kant apply`, `diff` and `export` read and write."""
