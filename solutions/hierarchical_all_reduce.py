"""All-reduce over fast links and slow ones.

An interviewer asks: "Two hosts with four GPUs each. Inside a host a GPU sends 300 GB/s; to the
other host each has an adapter of 25 GB/s. All eight need the sum of their 1 GB gradients. A ring
over all eight takes 70 ms. Why? Write one that takes 15, and tell me how many bytes cross."

Write `hierarchical_all_reduce(x, ranks_per_host, group)`: return the sum of `x` over all ranks.

Contract
    x               a tensor of any shape (a single number and an empty tensor too), any dtype that
                    can be added, and any memory layout. Shape and dtype are the same on every rank
    ranks_per_host  divides `group.size`. Ranks 0 to ranks_per_host - 1 are on the first host, the
                    next ranks_per_host ranks on the second, and so on. There may be one host, and
                    there may be one rank on each host
    returns         a new tensor with x's shape and dtype. `x` itself must not change
    group           `group.rank` and `group.size`
                    `group.isend(tensor, rank)` and `group.irecv(buffer, rank)` return a Pending;
                    its `wait()` completes the operation
                    `group.send` and `group.recv` do the same and block. No other operation is
                    allowed

Budget, for L ranks on each of H hosts (n = L H) and an x of numel elements
    within a host   each rank sends at most 2(L-1) messages, of at most ceil(numel / L) elements
    between hosts   each rank sends at most 2(H-1) messages, of at most ceil(numel / n) elements.
                    All ranks together send 2(H-1) numel elements between hosts: no padding
    A rank also receives no more than that.
    torch.tensor_split cuts x into parts of these sizes. Empty parts may be sent or skipped.

The two functions below run on a ring of the ranks that you pass to them. Use them, or your own.
"""

from collections.abc import Sequence

import torch

from labkit.comm import Group


def reduce_scatter(parts: Sequence[torch.Tensor], ranks: Sequence[int], group: Group) -> None:
    """Make parts[i] on ranks[i] the sum of parts[i] over `ranks`, in place.

    `parts` has one part for each of `ranks`. All other parts are invalid afterwards: they hold the
    sums of some ranks only.
    """
    n, me = len(ranks), ranks.index(group.rank)
    for step in range(n - 1):
        ours = parts[(me - 2 - step) % n]
        outgoing = group.isend(parts[(me - 1 - step) % n], ranks[(me + 1) % n])
        ours += group.irecv(torch.empty_like(ours), ranks[(me - 1) % n]).wait()
        outgoing.wait()


def all_gather(parts: Sequence[torch.Tensor], ranks: Sequence[int], group: Group) -> None:
    """Copy parts[i] of ranks[i] to all of `ranks`, in place."""
    n, me = len(ranks), ranks.index(group.rank)
    for step in range(n - 1):
        outgoing = group.isend(parts[(me - step) % n], ranks[(me + 1) % n])
        group.irecv(parts[(me - 1 - step) % n], ranks[(me - 1) % n]).wait()
        outgoing.wait()


def hierarchical_all_reduce(x: torch.Tensor, ranks_per_host: int, group: Group) -> torch.Tensor:
    """Return the sum of `x` over all ranks of `group`, as a new tensor of x's shape and dtype.

    Wire, for L ranks on each of H hosts: 2(L-1)/L of x on fast links, 2(H-1)/(H L) on slow ones.
    """
    ### BEGIN SOLUTION
    num_hosts = group.size // ranks_per_host
    host, place = divmod(group.rank, ranks_per_host)
    fast = [host * ranks_per_host + p for p in range(ranks_per_host)]  # the ranks of this host
    slow = [h * ranks_per_host + place for h in range(num_hosts)]  # this place on every host

    total = x.flatten().clone()
    chunks = total.tensor_split(ranks_per_host)  # views of total, one for each place
    pieces = chunks[place].tensor_split(num_hosts)  # views of our chunk, one for each host

    # The fast reduce-scatter comes first: only one Lth of x is left to send over the slow links.
    reduce_scatter(chunks, fast, group)
    reduce_scatter(pieces, slow, group)
    all_gather(pieces, slow, group)
    all_gather(chunks, fast, group)
    return total.view(x.shape)
    ### END SOLUTION
