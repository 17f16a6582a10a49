"""Studies that repeat the paper's, one per module."""
