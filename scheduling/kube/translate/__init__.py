"""Kubernetes objects and the facts of the engine, each made from the other."""
