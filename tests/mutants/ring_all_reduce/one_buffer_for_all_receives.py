"""Mutant: posts all receives of the first phase at once, into the same scratch memory.

outcome: "wrong"
diagnosis: "the buffer changed before its receive completed"
"""


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)
    scratch = total.new_empty(segments[0].numel())

    order = [segments[(rank - step - 1) % n] for step in range(n - 1)]
    incoming = [group.irecv(scratch[: ours.numel()], left) for ours in order]
    for step, ours in enumerate(order):
        outgoing = group.isend(segments[(rank - step) % n], right)
        ours += incoming[step].wait()
        outgoing.wait()

    for step in range(n - 1):
        outgoing = group.isend(segments[(rank + 1 - step) % n], right)
        group.irecv(segments[(rank - step) % n], left).wait()
        outgoing.wait()
    return total.view(x.shape)
