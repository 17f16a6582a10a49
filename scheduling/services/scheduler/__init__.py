"""The loop of a scheduler process: leases, cycles, and the rows they write."""
