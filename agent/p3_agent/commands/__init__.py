"""The commands of `p3-agent`, one module each: what it is called, its options, what it does."""
