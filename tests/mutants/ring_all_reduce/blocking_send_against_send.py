"""Mutant: sends, and receives afterwards, on every rank.

outcome: "hung"
diagnosis: "every rank is in send: nobody receives"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        group.send(segments[(rank - step) % n], right)
        ours += group.recv(torch.empty_like(ours), left)
    for step in range(n - 1):
        group.send(segments[(rank + 1 - step) % n], right)
        group.recv(segments[(rank - step) % n], left)
    return total.view(x.shape)
