"""What the nodes of a cluster are, what is free on them, and which of them a pod may use."""
