"""Where tenants stand in the tree and what their share weighs: as typed, changed together with
quotas, and taken back."""
