"""The commands of `p3`, one module each."""
