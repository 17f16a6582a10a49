"""What acts on the embedded cluster's objects: kubelets, volumes, evictions."""
