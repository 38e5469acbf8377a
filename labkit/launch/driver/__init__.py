"""The driver's side of a run: starting ranks, listening to them, ending them."""
