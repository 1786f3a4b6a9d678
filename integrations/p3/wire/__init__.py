"""The slice protocol as values: bytes in, events out, no I/O."""
