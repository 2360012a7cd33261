"""What every room uses: errors, units, named options, escapes, arrays and compiled kernels."""
