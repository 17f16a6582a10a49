"""Where nodes are in the network, according to objects of other schedulers."""
