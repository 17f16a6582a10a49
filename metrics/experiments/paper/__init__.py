"""Studies that repeat the paper's, a module each."""
