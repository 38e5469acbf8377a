"""A step and a run simulated: operations of every class of ranks, failures over weeks."""
