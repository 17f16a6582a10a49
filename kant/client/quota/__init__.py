"""The commands about changes of quotas that are prepared, or happen later."""
