"""Bruck's all-gather: chunks in log2 n steps, with the bytes of a ring, for any number of ranks.

Each rank collects chunks in the order rank, rank + 1, ...: it begins with its own. In step s it
sends the first 2**s of them to the rank 2**s to its left, which is 2**s chunks behind. The last
step sends what is still missing. Five ranks:

                    rank a       rank b       rank c       rank d       rank e
    has             a            b            c            d            e
    1 to the left   a b          b c          c d          d e          e a
    2 to the left   a b c d      b c d e      c d e a      d e a b      e a b c
    4 to the left   a b c d e    b c d e a    c d e a b    d e a b c    e a b c d
    turned          a b c d e    a b c d e    a b c d e    a b c d e    a b c d e

Layout: before, rank r has chunk r of the result by torch.tensor_split's rule; after, all of it.
Steps: log2 n, rounded up; a ring takes n - 1. Wire: 1 + 2 + 4 + ... = n - 1 chunks, (n-1)/n of the
result, as in a ring. Memory: a second tensor of the result's size, in which the chunks are turned.

A small tensor takes log2 n latencies instead of n - 1. For a large one the last messages decide:
they are the longest, and go furthest, up to half the ranks away, over links that many ranks share.
A ring's neighbour may be on the next port. NCCL's PAT therefore begins with the longest distance,
where a message has one chunk, and needs a buffer that does not grow with the tensor.

Papers: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 8(11), 1997, section 4; Jeaugey, "PAT: a new algorithm for
all-gather and reduce-scatter operations at scale", arXiv:2506.20252.
"""

from itertools import accumulate

import torch

from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen
from labkit.comm.member import messages_of


def bruck_all_gather(
    chunk: torch.Tensor,
    numel: int,
    group: Group | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the chunks of all ranks, joined in rank order.

    chunk: this rank's chunk of `numel` elements, as tensor_split cuts them, of any dtype; it is
    not changed. Returns (numel,): a new tensor, or the contiguous `out`. `chunk` may be a view of
    its own place in `out`.
    Wire: n - 1 chunks in log2 n messages: (n-1)/n of the result. TypeError if chunk is no tensor or
    numel no number, ValueError for a chunk or an `out` of another size.
    """
    group = chosen(group)
    chunk = tensor_arguments.tensor(chunk, group)
    whole = tensor_arguments.row(out, numel, chunk, group)
    n, rank = group.size, group.rank
    sizes = [each.numel() for each in whole.tensor_split(n)]
    if chunk.numel() != sizes[rank]:
        raise ValueError(
            f"rank {rank} of {n} holds {sizes[rank]} of {numel} elements, but its chunk has "
            f"{chunk.numel()}; cut with torch.tensor_split(x, {n})"
        )
    turned = torch.empty_like(whole)  # chunks rank, rank + 1, ..., rank - 1
    ends = [0, *accumulate(sizes[rank:] + sizes[:rank])]  # elements before each of them
    turned[: ends[1]] = chunk.flatten()
    held = 1
    with messages_of("bruck_all_gather", whole):
        while held < n:
            more = min(held, n - held)
            with group.together():
                sent = group.isend(turned[: ends[more]], (rank - held) % n)
                arriving = group.irecv(turned[ends[held] : ends[held + more]], (rank + held) % n)
            arriving.wait()
            sent.wait()
            held += more
    first = ends[n - rank]  # where chunk 0 begins
    return torch.cat((turned[first:], turned[:first]), out=whole)
