"""Mutant: leaves the group out.

outcome: "crashed"
diagnosis: "cannot be called"
"""


def ring_all_reduce(x):
    return x.clone()
