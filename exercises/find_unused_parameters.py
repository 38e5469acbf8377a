"""Average gradients when ranks use different parameters.

An interviewer asks: "Your model has a branch, and in this step some ranks do not take it. With DDP
the step hangs. What does find_unused_parameters=True do, and what does it cost? And what happens to
a parameter that no rank used?"

Write `find_unused_parameters(module, group)`: average the gradients that at least one rank has.

Contract
    module  an nn.Module after backward, the same on every rank. A trained parameter
            (requires_grad=True) that this rank's loss used has its gradient in parameter.grad; it
            may be all zeros. One that this rank's loss did not use has grad None. Which ones these
            are differs by rank: a rank knows only its own. Frozen parameters (requires_grad=False)
            have grad None. At least one parameter is trained, and no two modules share one
    group   `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum; it
            takes op="max", "min" or "mean", and `out=tensor`. Flags may be uint8, int64 or float32
    returns nothing. Afterwards, for each trained parameter, on every rank:
            if at least one rank had a gradient, grad is the sum of the ranks' gradients divided by
            group.size. A rank with grad None counts as zeros, and gets this mean too
            if no rank had a gradient, grad is None. Zeros are not the same: the optimizer would
            apply weight decay and momentum to the parameter
            Frozen parameters and the values of all parameters stay as they are

Budget, on every rank
    collectives  one all-reduce by which the ranks agree which parameters any of them used, and at
                 most one for each of these parameters
    payload      the bytes of all tensors that a rank passes to all_reduce: at most the gradients of
                 these parameters, and 8 bytes for each trained parameter

torch's own: DistributedDataParallel(find_unused_parameters=True).
"""

import torch
from torch import nn

from labkit.comm import Group


def find_unused_parameters(module: nn.Module, group: Group) -> None:
    """Average the gradients of parameters that any rank used.

    Wire: 2(n-1)/n of the payload per rank.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
