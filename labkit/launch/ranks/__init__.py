"""A rank's side of a run: what its process does, and what it tells the driver."""
