"""Objects of the embedded cluster: their rules, their store, lists and watches."""
