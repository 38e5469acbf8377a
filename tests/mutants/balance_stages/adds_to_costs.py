"""Mutant: leaves an end mark in the list.

outcome: "wrong"
diagnosis: "changes what it is given"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    costs.append(0)
    costs[-1] = costs[0]
    costs[0] += 1
    return [[layer] for layer in range(num_stages)]
