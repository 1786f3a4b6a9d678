"""`p3-agent doctor`: facts of a node in (`collect`, I/O), findings out (`checks`, pure)."""
