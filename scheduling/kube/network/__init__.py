"""Where nodes are in the network, as objects of other schedulers say."""
