"""The dashboard of the operators."""
