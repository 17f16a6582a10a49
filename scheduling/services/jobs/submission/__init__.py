"""Turn job documents of one or several users into rows: read, check, write."""
