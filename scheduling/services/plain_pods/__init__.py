"""Jobs for pods that somebody else made."""
