"""All-reduce on a ring.

An interviewer asks: "Four GPUs each hold a 1 GB gradient and each needs the sum of all four. Every
GPU has one fast link to its right-hand neighbour. Write the all-reduce. How many bytes leave a GPU,
and does that number grow when I give you a hundred GPUs?"

Write `ring_all_reduce(x, group)`: return the sum of `x` over all ranks, on every rank.

Contract
    x       any shape (a single number and an empty tensor too), any dtype that can be added, any
            memory layout; the same shape and dtype on every rank
    returns a new tensor of x's shape and dtype; `x` itself is left alone
    group   `group.rank`, `group.size`; `group.isend(tensor, rank)` and `group.irecv(buffer, rank)`,
            each returning a Pending whose `wait()` completes it; `group.send` and `group.recv`,
            which block. Nothing else: no all_reduce of anybody's

Budget, on n ranks
    messages    2(n-1) sends per rank, all to the same neighbour
    size        one nth of x each: cut the flattened x into n segments as torch.tensor_split does,
                where the first numel % n segments are one element longer. (Any n segments whose
                sizes differ by at most one will pass, and so will either direction around the ring.
                Empty segments may be sent or skipped.)
    never       padding, the whole tensor, or a segment twice
"""

import torch

from labkit.comm import Group


def ring_all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum of `x` over all ranks of `group`, as a new tensor of x's shape and dtype.

    Wire: 2(n-1) sends of x.numel() / n elements per rank: 2(n-1)/n of x's bytes.
    """
    ### BEGIN SOLUTION
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)  # views: writing to a segment writes to `total`

    # Reduce-scatter: before step s, segment rank - 1 - s is the sum of the s + 1 ranks that end
    # here. After the last step segment rank is complete.
    for step in range(n - 1):
        ours = segments[(rank - 2 - step) % n]
        # Both are posted before either is waited for: a blocking send here deadlocks the ring.
        outgoing = group.isend(segments[(rank - 1 - step) % n], right)
        incoming = group.irecv(torch.empty_like(ours), left)
        ours += incoming.wait()
        outgoing.wait()

    # All-gather: before step s, segment rank - s is complete here; pass it on.
    for step in range(n - 1):
        outgoing = group.isend(segments[(rank - step) % n], right)
        incoming = group.irecv(segments[(rank - 1 - step) % n], left)
        incoming.wait()
        outgoing.wait()
    return total.view(x.shape)
    ### END SOLUTION
