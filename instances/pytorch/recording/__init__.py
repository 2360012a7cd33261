"""What every step of an fx graph does, forward and backward."""
