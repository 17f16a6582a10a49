"""Who may hold how many GPUs of which model, who holds them, and who owes them to whom."""
