"""A tenant's place in the tree and the weight of its share: as typed, changed together with quotas,
and reverted."""
