"""Translation between Kubernetes objects and the engine's facts, both ways."""
