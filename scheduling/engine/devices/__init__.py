"""The GPUs and NICs inside a node: how they are connected, and which of them a pod gets."""
