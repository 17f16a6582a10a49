"""Drafts of quota changes: kept on the server until they are applied or discarded."""
