"""The dynamic program over ideals, and over single orders."""
