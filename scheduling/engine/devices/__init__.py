"""The GPUs and NICs inside a node: which of them a pod gets, and how they are joined."""
