"""Devices of a cluster and the claims for them, as a scheduler knows them."""
