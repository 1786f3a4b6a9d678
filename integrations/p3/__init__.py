"""P3: gradient slices leave most urgent first, and the kernel keeps them in that order."""
