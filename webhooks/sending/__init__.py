"""Carrying deliveries to their receivers: to which addresses, how, and when again."""
