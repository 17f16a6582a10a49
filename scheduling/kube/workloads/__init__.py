"""What a pod belongs to: one small module for each kind of owner or group (docs/decisions/0056)."""
