"""All-reduce on a ring.

An interviewer asks: "Four GPUs each hold a 1 GB gradient and each needs the sum of all four. Every
GPU has one fast link to its right-hand neighbour. Write the all-reduce. How many bytes leave a GPU,
and does that number grow when I give you a hundred GPUs?"

Write `ring_all_reduce(x, group)`: return the sum of `x` over all ranks, on every rank.

Contract
    x       a tensor of any shape (a single number and an empty tensor too), any dtype that can be
            added, and any memory layout. Shape and dtype are the same on every rank
    returns a new tensor with x's shape and dtype. `x` itself must not change
    group   `group.rank` and `group.size`
            `group.isend(tensor, rank)` and `group.irecv(buffer, rank)` return a Pending; its
            `wait()` completes the operation
            `group.send` and `group.recv` do the same and block. No other operation is allowed

Budget, on n ranks
    messages    at most 2(n-1) sends per rank, all to the same neighbour: right or left
    size        one nth of x per message. Cut the flattened x into n chunks as torch.tensor_split
                does: their sizes differ by at most one element. Which chunks are the longer ones
                is up to you. Empty chunks may be sent or skipped
    never       padding on the wire, or the whole tensor in one message
"""

import torch

from labkit.comm import Group


def ring_all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of `x` over all ranks of `group`, as a new tensor of x's shape and dtype.

    Wire: 2(n-1) sends of x.numel() / n elements per rank: 2(n-1)/n of x's bytes.
    """
    ### BEGIN SOLUTION
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    chunks = total.tensor_split(n)  # views: writing to a chunk writes to `total`

    # Reduce-scatter. Before step s, chunk rank - 1 - s on this rank is the sum of s + 1 ranks.
    # After the last step chunk `rank` is the sum of all ranks.
    for step in range(n - 1):
        ours = chunks[(rank - 2 - step) % n]
        # Start both before waiting for either: ranks that all block in a send never receive.
        outgoing = group.isend(chunks[(rank - 1 - step) % n], right)
        incoming = group.irecv(torch.empty_like(ours), left)
        ours += incoming.wait()
        outgoing.wait()

    # All-gather. Before step s, chunk rank - s is complete on this rank: pass it on.
    for step in range(n - 1):
        outgoing = group.isend(chunks[(rank - step) % n], right)
        incoming = group.irecv(chunks[(rank - 1 - step) % n], left)
        incoming.wait()
        outgoing.wait()
    return total.view(x.shape)
    ### END SOLUTION
