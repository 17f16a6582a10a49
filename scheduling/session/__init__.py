"""The live loop's memory of a cluster."""
