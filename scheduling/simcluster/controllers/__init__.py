"""What acts on the objects of the embedded cluster: kubelets, volumes, evictions."""
