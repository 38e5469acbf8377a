"""Broadcast down a binomial tree.

An interviewer asks: "One GPU of eight has read the checkpoint, and the other seven need it. Sending
it to one GPU takes a second, and a GPU sends to one other at a time. How soon can all eight have
it? Write the broadcast. And with six GPUs? And if it is GPU 3 that has read it?"

Write `tree_broadcast(x, root, group)`: return the root's `x`, on every rank.

Contract
    x       a tensor of any shape (a single number and an empty tensor too), any dtype, and any
            memory layout. Shape and dtype are the same on every rank. The values count on the root
            only: on other ranks they may be anything, NaN too
    root    a rank of the group, the same number on every rank
    returns a new tensor with x's shape and dtype, equal to the root's x bit for bit. `x` itself
            must not change, on any rank
    group   `group.rank` and `group.size`
            `group.send(tensor, rank)` and `group.recv(buffer, rank)` block until the message has
            been received. They are enough
            `group.isend` and `group.irecv` do the same and return a Pending; its `wait()` completes
            the operation. No other operation is allowed

Budget, on n ranks, for any n from 1 to 8
    messages  one to every rank but the root: the whole of x. So there are n - 1 messages in all. An
              empty x need not be sent
    steps     at most ceil(log2 n) until the last rank has x. A rank sends one message per step, in
              the order of its calls, whether they block or not. A rank that receives x in one step
              can send it in the next
"""

import torch

from labkit.comm import Group


def tree_broadcast(x: torch.Tensor, root: int, group: Group) -> torch.Tensor:
    """Return the root's `x`, as a new tensor on every rank of `group`.

    Wire: the root sends x ceil(log2 n) times; half of the ranks send nothing.
    """
    ### BEGIN SOLUTION
    n = group.size
    position = (group.rank - root) % n  # in the tree; the root is at 0
    out = x.clone()

    # Before each step the positions below `distance` have x: 1, 2, 4, ... of them. Position p sends
    # it to position p + distance, if there is one.
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
