"""What is told of nodes: the orders about them, and what a change of them would do."""
