"""What a pod belongs to: one small module per kind of owner or group (docs/decisions/0056)."""
