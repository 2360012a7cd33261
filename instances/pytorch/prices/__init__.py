"""What operators and layers take: estimated, measured, corrected."""
