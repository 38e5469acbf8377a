"""Mutant: leaves the work to the group's all_to_all.

outcome: "wrong"
diagnosis: "calls a library collective"
"""

import torch


def uneven_all_to_all(x, counts, group):
    receive_counts = group.all_to_all(counts)
    return group.all_to_all(x, counts.tolist(), receive_counts.tolist())
