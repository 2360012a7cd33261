"""Export of plans for other launchers, a module for each."""
