"""Mutant: calls labkit's own ring.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit.collectives import ring_all_reduce as answer


def ring_all_reduce(x, group):
    return answer(x, group)
