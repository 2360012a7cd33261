"""Column generation for set partitioning: prices that prove bounds on the max-load."""
