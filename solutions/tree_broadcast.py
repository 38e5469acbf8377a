"""Broadcast down a binomial tree.

An interviewer asks: "One GPU of eight has read the checkpoint, and the other seven need it. Sending
it to one GPU takes a second, and a GPU sends to one other at a time. How soon can all eight have
it? Write the broadcast. And with six GPUs? And if it is GPU 3 that has read it?"

Write `tree_broadcast(x, root, group)`: return the root's `x`, on every rank.

Contract
    x       any shape (a single number and an empty tensor too), any dtype, any memory layout. Shape
            and dtype are the same on every rank; the values count on the root only, and elsewhere
            may be anything, NaN too
    root    a rank of the group, the same number on every rank
    returns a new tensor of x's shape and dtype, equal to the root's x bit for bit; `x` itself is
            left alone, on every rank
    group   `group.rank`, `group.size`; `group.send(tensor, rank)` and `group.recv(buffer, rank)`,
            which block until the message is through. That is enough; `isend` and `irecv`, each
            returning a Pending whose `wait()` completes it, may be used too. No broadcast of
            anybody's

Budget, on n ranks, for any n from 1 to 8
    messages  n - 1 in all, each the whole of x: one to every rank but the root. (An empty x need
              not be sent.)
    steps     ceil(log2 n) until the last rank has x. In a step a rank sends at most one message. So
              a rank's sends follow each other, in the order in which you call them, whether they
              block or not; and what a rank has received it can pass on in the next step
"""

import torch

from labkit.comm import Group


def tree_broadcast(x: torch.Tensor, root: int, group: Group) -> torch.Tensor:
    """The root's `x`, as a new tensor on every rank of `group`.

    Wire: the root sends x ceil(log2 n) times; half of the ranks send nothing.
    """
    ### BEGIN SOLUTION
    n = group.size
    position = (group.rank - root) % n  # in the tree; the root is at 0
    out = x.clone()

    # Before each step the positions below `distance` have x: 1, 2, 4, ... of them. Each sends it to
    # the position that is `distance` further on, if there is one.
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            group.recv(out, (position - distance + root) % n)
        distance *= 2
    return out
    ### END SOLUTION
