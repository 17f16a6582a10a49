"""The embedded cluster: a Kubernetes API server with kubelets, in its own process.

It speaks the wire protocol over HTTP, keeps its objects on disk, runs bound pods on simulated
nodes, records independently which pod held which GPU, and injects faults on request. Kant reaches
it through the same door as a real cluster. Start: `python -m scheduling.simcluster`.
"""
