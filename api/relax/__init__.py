"""Integer programs without whole numbers: of a problem, and of a schedule."""
