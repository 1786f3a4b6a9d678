"""Linux traffic control as values: nothing here knows of training."""
