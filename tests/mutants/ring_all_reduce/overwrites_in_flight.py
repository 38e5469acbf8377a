"""Mutant: receives into the buffer that it is sending.

outcome: "wrong"
diagnosis: "the tensor you sent changed before the send completed"
"""


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)

    travelling = segments[rank].clone()
    for step in range(n - 1):
        ours = segments[(rank - step - 1) % n]
        outgoing = group.isend(travelling, right)
        travelling.resize_(ours.numel())
        incoming = group.irecv(travelling, left)
        incoming.wait()
        outgoing.wait()
        travelling += ours

    for step in range(n - 1):
        segments[(rank + 1 - step) % n].copy_(travelling)
        outgoing = group.isend(travelling, right)
        arriving = group.irecv(segments[(rank - step) % n], left).wait()
        outgoing.wait()
        travelling = arriving.clone()
    return total.view(x.shape)
