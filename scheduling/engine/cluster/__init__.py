"""The nodes of a cluster, what is free on them, and which of them a pod may use."""
