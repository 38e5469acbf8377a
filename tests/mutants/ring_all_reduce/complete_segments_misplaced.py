"""Mutant: puts the complete segments one place too far.

outcome: "wrong"
diagnosis: "complete segments in the wrong places"
"""

import torch


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        outgoing = group.isend(segments[(rank - step) % n], right)
        incoming = group.irecv(torch.empty_like(ours), left)
        ours += incoming.wait()
        outgoing.wait()

    result = torch.empty_like(total)
    places = result.tensor_split(n)
    current = segments[(rank + 1) % n]
    places[rank].copy_(_fitted(current, places[rank]))
    for step in range(n - 1):
        outgoing = group.isend(current, right)
        current = group.irecv(torch.empty_like(segments[(rank - step) % n]), left).wait()
        outgoing.wait()
        place = places[(rank - step - 1) % n]
        place.copy_(_fitted(current, place))
    return result.view(x.shape)


def _fitted(segment, place):
    return torch.cat([segment, segment[:1]])[: place.numel()]
