"""Mutant: does not communicate.

outcome: "wrong"
diagnosis: "nothing is sent"
"""


def ring_all_reduce(x, group):
    return x.clone()
