"""The fleets that ship with the embedded cluster, as inventory files."""
