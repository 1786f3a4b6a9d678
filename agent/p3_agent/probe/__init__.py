"""Do marks survive a path? Values in, verdict out; `sender`, `listener` and `quotes` touch it."""
