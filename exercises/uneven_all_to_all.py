"""All-to-all with blocks of any sizes.

An interviewer asks: "In a mixture of experts every GPU has one expert. The router has decided which
token goes to which; on each GPU the tokens are sorted by where they have to go. Some experts are
popular and get many, some get none. Write the exchange with sends and receives. How does a GPU
know how much memory to reserve?"

Write `uneven_all_to_all(x, counts, group)`: deal out the rows of `x`, and return those that the
others have for this rank.

Contract
    x       (rows, ...): any number of rows, 0 too, of any shape; any dtype, any memory layout.
            The first counts[0] rows are for rank 0, the next counts[1] for rank 1, and so on.
            The shape of a row, and the dtype, are the same on every rank
    counts  (n,) int64: how many of this rank's rows are for each rank, itself included. They add up
            to x's rows, may be 0, and differ from rank to rank. Nobody knows the others' counts
    returns a new tensor: the rows for this rank, those from rank 0 first, then those from rank 1,
            and so on, each rank's in their order; its own in their place. x and counts are left
            alone
    group   `group.rank`, `group.size`; `group.isend(tensor, rank)` and `group.irecv(buffer, rank)`,
            each returning a Pending whose `wait()` completes it; `group.send` and `group.recv`,
            which block. A buffer has the shape and dtype of the message that comes into it. No
            all_to_all of anybody's

Budget, from each rank to each other rank
    bytes    the rows that it has for it, once, and at most 8 bytes besides
    messages two. (An empty block need not be sent.)
    never    padding, a row for somebody else, a detour over a third rank
"""

import torch

from labkit.comm import Group


def uneven_all_to_all(x: torch.Tensor, counts: torch.Tensor, group: Group) -> torch.Tensor:
    """The rows that all ranks have for this one, in rank order, as a new tensor.

    Wire: x but for the rows that stay, and 8 bytes to each other rank.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
