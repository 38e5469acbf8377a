"""Bytes of the library's collectives on the wire, per rank, as gloo performs them.

`Operation.sent_bytes` of a send is simply its size. For a collective it depends on the backend's
algorithm, so it is stated here, and tests compare it with what the kernel counted on the sockets
(`sent_bytes` of connect.py). gloo's three notes of 48 bytes around every message (ready to send,
ready to receive, and the header of the data) are left out. n ranks, D payload bytes:

    all_reduce       2(n-1)/n D     ring
    reduce_scatter   2(n-1)/n D     gloo has none: it performs an all_reduce and drops the rest
    all_gather       (n-1) D        ring; D is one rank's part
    all_to_all       (n-1)/n D      one message to each peer
    broadcast        D per child    binomial tree
    gather           D              straight to the root
    scatter          D per peer     straight from the root; D is one rank's part

With nccl they are a convention, not a measurement: nccl chooses among algorithms and may reduce
inside the switch, and its own reduce-scatter sends half of what gloo's sends.
Source: gloo/allreduce.cc, broadcast.cc, gather.cc; nccl-tests, doc/PERFORMANCE.md.
"""

from typing import NamedTuple


class Traffic(NamedTuple):
    """Bytes that one rank sends and receives in one operation."""

    sent: int
    received: int


def ring_all_reduce(nbytes: int, size: int) -> Traffic:
    """`nbytes`: the whole tensor. Rounded to whole bytes: gloo cuts segments of its own."""
    moved = round(2 * (size - 1) * nbytes / size)
    return Traffic(moved, moved)


def ring_all_gather(nbytes: int, size: int) -> Traffic:
    """`nbytes`: one rank's part."""
    return Traffic((size - 1) * nbytes, (size - 1) * nbytes)


def tree_broadcast(nbytes: int, size: int, rank: int, root: int) -> Traffic:
    """Binomial tree: rank v (counted from the root) has the children v + 2**k, 2**k > v."""
    virtual = (rank - root) % size
    step, children = 1, 0
    while virtual + step < size:
        children += step > virtual
        step *= 2
    return Traffic(children * nbytes, 0 if virtual == 0 else nbytes)


def to_root(nbytes: int, size: int, rank: int, root: int) -> Traffic:
    """Gather: `nbytes` is one rank's part."""
    return Traffic(0, (size - 1) * nbytes) if rank == root else Traffic(nbytes, 0)


def from_root(nbytes: int, size: int, rank: int, root: int) -> Traffic:
    """Scatter: `nbytes` is one rank's part."""
    return Traffic(*reversed(to_root(nbytes, size, rank, root)))
