"""What the model behind `p3 predict` is made of. Pure: no I/O, no torch."""
