"""The one door to Kubernetes: list and watch, translate to engine facts, create, bind, evict."""
