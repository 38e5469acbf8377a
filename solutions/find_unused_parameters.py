"""Average gradients when ranks use different parameters.

An interviewer asks: "Your model has a branch, and in this step some ranks do not take it. With DDP
the step hangs. What does find_unused_parameters=True do, and what does it cost? And what happens to
a parameter that no rank used?"

Write `find_unused_parameters(module, group)`: average the gradients that at least one rank has.

Contract
    module  an nn.Module after backward. parameter.grad is None where this rank's loss did not use
            the parameter. Frozen parameters have requires_grad=False and no gradient
    used    by at least one rank: afterwards grad is the mean over all ranks, on every rank. A rank
            that did not use the parameter counts as zeros
    unused  by every rank: afterwards grad is still None, on every rank. Zeros are not the same: the
            optimizer would apply weight decay and momentum to the parameter
    group   `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum; it
            takes op="max", "min" or "mean", and `out=tensor`
    returns nothing. The values of parameters stay as they are

Budget, on every rank
    collectives  one all-reduce to agree, and one for each parameter that some rank used
    payload      what a rank passes to its collectives: at most the gradients of these parameters,
                 and 8 bytes for each trained parameter (one with requires_grad=True)

torch's own: DistributedDataParallel(find_unused_parameters=True).
"""

import torch
from torch import nn

from labkit.comm import Group


def find_unused_parameters(module: nn.Module, group: Group) -> None:
    """Average the gradients of parameters that any rank used.

    Wire: 2(n-1)/n of the payload per rank.
    """
    ### BEGIN SOLUTION
    trained = [each for each in module.parameters() if each.requires_grad]
    # No rank knows what the others used. All must make the same calls, so they agree first.
    used_here = torch.tensor([each.grad is not None for each in trained], dtype=torch.uint8)
    used = group.all_reduce(used_here, op="max")
    for parameter, is_used in zip(trained, used.tolist()):
        if not is_used:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
    ### END SOLUTION
