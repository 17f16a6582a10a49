"""What a waiting job asks for, in each way that it may start, and whether it ever could."""
