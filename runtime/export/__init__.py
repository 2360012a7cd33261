"""Plans in the words of other launchers, each written by a module of its own and read back."""
