"""Mutant: lets labkit do it.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit import pipeline


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    return [list(layers) for layers in pipeline.balance(costs, num_stages)]
