"""Speaking to an API server: list, watch, create, bind, evict, logs."""
