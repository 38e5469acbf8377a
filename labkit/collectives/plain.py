"""Ring all-reduce in the fewest lines: every rank sends to its right neighbour. The first rung.

x is cut into n chunks. In n - 1 steps each chunk travels round the ring, and every rank it reaches
adds its own numbers. In n - 1 more steps the complete chunks travel round once more. With n = 3
ranks a, b and c, "ab2" is the sum of a's and b's chunk 2:

    reduce-scatter   rank a        rank b        rank c
    step 0 sends     a2            b0            c1            chunk rank - 1
    step 1 sends     ac1           ab2           bc0           chunk rank - 2
    then holds       bca0          cab1          abc2          chunk rank, complete

Layout: x and the sum are whole on every rank. Chunks differ in size by at most one element.
Sent: 2(n-1) chunks per rank, or 2(n-1)/n of x's bytes: never twice x, however many ranks there are.
Paper: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009.
"""

import torch

from labkit.comm import Group


def ring_all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of `x` over all ranks of `group`, as a new tensor of x's shape and dtype.

    Wire: 2(n-1) sends of x.numel() / n elements per rank: 2(n-1)/n of x's bytes.
    """
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
